"""Only the largest entries of a gradient are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field

from privaudit.defenses._gradient_traces import all_zeros, scattered_zeros
from privaudit.defenses._traces import ramp
from privaudit.defenses.base import (
    GRADIENT,
    ClientStepContext,
    Defense,
    Detection,
    GradientEvidence,
)

if TYPE_CHECKING:
    from torch import Tensor


class GradientPruning(Defense):
    """Keeps the largest entries by magnitude and sends zeros for the rest.

    Source: Lin 2018 (deep gradient compression), as a defense Zhu 2019; differs in
    that nothing is kept back for the next step.
    """

    name: ClassVar[str] = "gradient_pruning"
    title: ClassVar[str] = "Gradient pruning"
    source: ClassVar[str] = "Lin 2018; Zhu 2019"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    does_not_protect: ClassVar[str] = (
        "What the surviving entries determine: a linear layer's gradient is of low "
        "rank, and a tenth of it gives the rest back exactly."
    )

    ratio: float = Field(default=0.9, gt=0, lt=1)
    """Share of the entries that is dropped."""
    scope: Literal["tensor", "global"] = "tensor"
    """``tensor``: the largest of each parameter, one at least; ``global``: of all."""

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`."""
        if self.scope == "tensor":
            return {n: g * self._largest(g.flatten()).view_as(g)
                    for n, g in gradients.items()}  # fmt: skip
        joint = torch.cat([g.flatten() for g in gradients.values()])
        sizes = [g.numel() for g in gradients.values()]
        parts = torch.split(self._largest(joint), sizes)
        return {
            n: g * part.view_as(g)
            for (n, g), part in zip(gradients.items(), parts, strict=True)
        }

    def bytes_of(self, sent: Sequence[Tensor]) -> int:
        """See :class:`~privaudit.defenses.Defense`: values, and four bytes of place."""
        return sum(int(t.count_nonzero()) * (t.element_size() + 4) for t in sent)

    def _largest(self, values: Tensor) -> Tensor:
        """1 where an entry is among the largest, (entries,)."""
        kept = max(1, round((1 - self.ratio) * values.numel()))
        mask = torch.zeros_like(values)
        mask[values.abs().topk(min(kept, values.numel())).indices] = 1
        return mask

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        found = [scattered_zeros(g) for g in seen.sent]
        share, usual = sum(found) / len(found), scattered_zeros(seen.reference)
        zero = sum(all_zeros(g) for g in seen.sent) / len(seen.sent)
        more = zero - all_zeros(seen.reference)
        return Detection(
            defense=cls.name,
            confidence=max(ramp(share - usual, 0.04), ramp(more, 0.3)),
            evidence=f"{share:.0%} of the entries are zero where no unit or input is "
            f"silent, {usual:.0%} in an own gradient; {zero:.0%} of all",
            estimate={"ratio": max(0.0, zero)},
        )
