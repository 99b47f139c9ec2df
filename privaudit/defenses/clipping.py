"""A gradient that is too long is shortened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.defenses._gradient_traces import (
    norms,
    one_size_only,
    round_bound,
    shared_bound,
)
from privaudit.defenses.base import (
    GRADIENT,
    ClientStepContext,
    Defense,
    Detection,
    GradientEvidence,
)

if TYPE_CHECKING:
    from torch import Tensor


class GradientClipping(Defense):
    """Scales the whole gradient down to a largest norm: ``g · min(1, C / ‖g‖)``.

    Source: Pascanu 2013.
    """

    name: ClassVar[str] = "gradient_clipping"
    title: ClassVar[str] = "Gradient clipping"
    source: ClassVar[str] = "Pascanu 2013"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    does_not_protect: ClassVar[str] = (
        "Anything: only the gradient's scale is lost, and neither closed forms nor "
        "the cosine of gradient matching look at it."
    )

    max_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """C, of all parameters together."""

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`."""
        return clipped(gradients, self.max_norm)

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        if any(one_size_only(g) > 0.5 for g in seen.sent):
            return None  # signs alone are of one norm
        found = norms(seen.sent)
        shared = shared_bound(found)
        (own,) = norms([seen.reference])
        if shared is not None and abs(own - shared) <= 0.01 * shared:
            shared = None  # every gradient is of that norm, such as behind a zero head
        bound = shared or round_bound(max(found))
        if shared is not None:
            text = f"norms of several clients are all {shared:.5g}"
        elif bound is not None:
            text = f"the norm is {max(found):.6g}, a round number"
        else:
            text = f"norms up to {max(found):.5g}, no two alike and none round"
        return Detection(
            defense=cls.name,
            confidence=1.0 if shared is not None else 0.6 if bound is not None else 0.0,
            evidence=text,
            estimate={} if bound is None else {"max_norm": bound},
        )


def clipped(gradients: Mapping[str, Tensor], max_norm: float) -> dict[str, Tensor]:
    """All of them scaled by one factor, so that their joint norm is in bounds."""
    norms = [g.double().norm() for g in gradients.values()]
    norm = float(torch.stack(norms).norm()) if norms else 0.0
    factor = min(1.0, max_norm / norm) if norm else 1.0
    return {n: g * factor for n, g in gradients.items()}
