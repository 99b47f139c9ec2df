"""Cosine distance over all parameters jointly."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.distances.base import Distance

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.exposure.predict import GradientGuess

_EPSILON = 1e-8
"""A guess of this share of the observed norm is as good as zero."""


class Cosine(Distance):
    """``1 − ⟨g, g*⟩ / (‖g‖·‖g*‖)`` over all parameters as one vector.

    Blind to the gradient's scale, as clipping leaves it.
    Source: Geiping 2020; differs in what keeps the denominator off zero: a share of
    the observed norm, so that small gradients match at the truth as well.
    """

    name: ClassVar[str] = "cosine"
    source: ClassVar[str] = "Geiping 2020"

    def measure(self, guess: GradientGuess, observed: GradientGuess) -> Tensor:
        """See :class:`~privaudit.distances.base.Distance`."""
        return self.of(guess.inner(observed), guess.square(), observed.square())

    @staticmethod
    def of(inner: Tensor, guess: Tensor, observed: Tensor) -> Tensor:
        """The distance from ⟨g, g*⟩, ‖g‖² and ‖g*‖², for any number of pairs."""
        # The root of zero has no derivative: a zero guess is kept off it.
        tiny = torch.finfo(observed.dtype).tiny
        off_zero = (_EPSILON**2 * observed).clamp_min(tiny)
        norms = (guess + off_zero).sqrt() * observed.clamp_min(tiny).sqrt()
        return 1 - inner / norms
