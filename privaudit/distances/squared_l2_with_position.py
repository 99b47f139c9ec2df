"""Squared Euclidean distance, and the direction of one parameter's gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.distances.base import Distance
from privaudit.distances.squared_l2 import SquaredL2

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.exposure.predict import GradientGuess


class SquaredL2WithPosition(Distance):
    """``‖g − g*‖² / ‖g*‖² + λ·(1 − cos(g_E, g*_E))``, E the position embedding.

    Source: Lu 2021, eq. 8; differs in the denominator, see ``squared_l2``.
    """

    name: ClassVar[str] = "squared_l2_with_position"
    source: ClassVar[str] = "Lu 2021"

    position: str
    """Name of the position embedding among the parameters."""
    weight: float = Field(default=1e-4, ge=0)
    """λ of the position embedding's part."""

    def measure(self, guess: GradientGuess, observed: GradientGuess) -> Tensor:
        """See :class:`~privaudit.distances.base.Distance`."""
        ours, theirs = guess.dense[self.position], observed.dense[self.position]
        tiny = torch.finfo(ours.dtype).tiny
        norms = (ours.square().sum() + tiny).sqrt() * theirs.norm().clamp_min(tiny)
        cosine = (ours * theirs).sum() / norms.clamp_min(tiny)
        apart: Tensor = self.weight * (1 - cosine)
        return SquaredL2().measure(guess, observed) + apart
