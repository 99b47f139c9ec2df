"""Only the signs of a gradient are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from privaudit.defenses._gradient_traces import one_size_only
from privaudit.defenses._traces import ramp
from privaudit.defenses.base import (
    GRADIENT,
    ClientStepContext,
    Defense,
    Detection,
    GradientEvidence,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class SignSgd(Defense):
    """Sends −1, 0 or 1 for each entry: the scale is lost.

    Source: Bernstein 2018 (signSGD).
    """

    name: ClassVar[str] = "sign"
    title: ClassVar[str] = "Signs only (signSGD)"
    source: ClassVar[str] = "Bernstein 2018"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    does_not_protect: ClassVar[str] = (
        "Outlines: a linear layer's signs tell for each pixel whether it is brighter "
        "than the mean, and a search that compares signs gets further."
    )

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`."""
        return {n: g.sign() for n, g in gradients.items()}

    def bytes_of(self, sent: Sequence[Tensor]) -> int:
        """See :class:`~privaudit.defenses.Defense`: one bit an entry."""
        return sum(-(-t.numel() // 8) for t in sent)

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        share = sum(one_size_only(g) for g in seen.sent) / len(seen.sent)
        return Detection(
            defense=cls.name, confidence=ramp(share, 0.5),
            evidence=f"{share:.0%} of the entries are in parameters of one magnitude",
        )  # fmt: skip
