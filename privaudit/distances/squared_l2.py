"""Squared Euclidean distance over all parameters jointly."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.distances.base import Distance

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.exposure.predict import GradientGuess


class SquaredL2(Distance):
    """``‖g − g*‖² / ‖g*‖²`` over all parameters as one vector.

    Source: Zhu 2019; differs in the denominator, so that a goal or a weight means the
    same for gradients of any size.
    """

    name: ClassVar[str] = "squared_l2"
    source: ClassVar[str] = "Zhu 2019"

    def measure(self, guess: GradientGuess, observed: GradientGuess) -> Tensor:
        """See :class:`~privaudit.distances.base.Distance`."""
        apart = torch.stack([*guess.squares_apart(observed).values()]).sum()
        size = observed.square()
        return apart / size.clamp_min(torch.finfo(size.dtype).tiny)
