"""What is sent is rounded to few levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privaudit.defenses.base import FEATURES, GRADIENT, ClientStepContext, Defense

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privaudit.types import FeatureLayout


class Quantisation(Defense):
    """Rounds to 2^bits levels, evenly from the smallest entry to the largest.

    The range is each parameter's own; of features, each image's.

    Source: Alistarh 2017 (QSGD); differs in rounding to the nearest level, without
    chance, and in the range.
    """

    name: ClassVar[str] = "quantisation"
    title: ClassVar[str] = "Quantisation"
    source: ClassVar[str] = "Alistarh 2017"
    exposures: ClassVar[frozenset[str]] = frozenset({FEATURES, GRADIENT})
    does_not_protect: ClassVar[str] = (
        "All but the last digits of each entry: it saves bandwidth, and 8 bits show "
        "an image about as well as 32."
    )

    bits: int = Field(default=8, ge=1, le=16)
    """Of each entry that is sent."""

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """See :class:`~privaudit.defenses.Defense`."""
        return self._rounded(sent)

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`."""
        return {n: self._rounded(g) for n, g in gradients.items()}

    def bytes_of(self, sent: Sequence[Tensor]) -> int:
        """See :class:`~privaudit.defenses.Defense`: levels, and two ends a tensor."""
        return sum(-(-t.numel() * self.bits // 8) + 2 * t.element_size() for t in sent)

    def _rounded(self, values: Tensor) -> Tensor:
        if values.numel() == 0:
            return values.clone()
        wide = values.double()
        low, high = wide.min(), wide.max()
        step = (high - low) / (2**self.bits - 1)
        if step == 0:
            return values.clone()
        rounded: Tensor = low + ((wide - low) / step).round() * step
        return rounded.to(values)
