"""What is sent is rounded to few levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privaudit.defenses._gradient_traces import on_lattice, one_size_only
from privaudit.defenses._traces import lattice_bits, ramp
from privaudit.defenses.base import (
    FEATURES,
    GRADIENT,
    ClientStepContext,
    Defense,
    Detection,
    FeatureEvidence,
    GradientEvidence,
)

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

    @classmethod
    def detect_features(cls, seen: FeatureEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        found = [lattice_bits(x[x.any(-1)] if x.dim() > 1 else x) for x in seen.sent]
        known = [bits for bits in found if bits is not None]
        return cls._seen(len(known) / max(1, len(found)), known)

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        looks = [on_lattice(g) for g in seen.sent if one_size_only(g) < 0.5]
        if not looks:
            return None
        shares = [share for share, _ in looks]
        return cls._seen(sum(shares) / len(shares), [b for _, b in looks if b])

    @classmethod
    def _seen(cls, share: float, bits: Sequence[float]) -> Detection:
        usual = sorted(bits)[len(bits) // 2] if bits else 0.0
        return Detection(
            defense=cls.name,
            confidence=ramp(share, 0.5),
            evidence=f"{share:.0%} of what was sent sits on even levels"
            + (f", {usual:.1f} bits of them" if bits else ""),
            estimate={"bits": float(math.ceil(usual - 0.01))} if bits else {},
        )
