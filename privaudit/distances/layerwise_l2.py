"""Euclidean distance of each parameter's gradient, added up."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.distances.base import Distance

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.exposure.predict import GradientGuess


class LayerwiseL2(Distance):
    """``Σ_l ‖g_l − g*_l‖ / Σ_l ‖g*_l‖``, with l over weights and biases.

    Layers with small gradients count for more than in a joint distance.
    Source: Yin 2021, eq. 4; differs in the denominator, so that a goal or a weight
    means the same for gradients of any size.
    """

    name: ClassVar[str] = "layerwise_l2"
    source: ClassVar[str] = "Yin 2021"

    def measure(self, guess: GradientGuess, observed: GradientGuess) -> Tensor:
        """See :class:`~privaudit.distances.base.Distance`."""
        size = _norms([*observed.squares().values()]).detach()
        return _norms([*guess.squares_apart(observed).values()]) / size


def _norms(squares: list[Tensor]) -> Tensor:
    stacked = torch.stack(squares)
    # The root of zero has no derivative: it is kept off it.
    return stacked.clamp_min(0).add(torch.finfo(stacked.dtype).tiny).sqrt().sum()
