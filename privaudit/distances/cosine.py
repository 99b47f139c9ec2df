"""Cosine distance over all parameters jointly."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privaudit.distances.base import Distance

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.exposure.predict import GradientGuess

_EPSILON = 1e-8


class Cosine(Distance):
    """``1 − ⟨g, g*⟩ / (‖g‖·‖g*‖)`` over all parameters as one vector.

    Blind to the gradient's scale, as clipping leaves it. 1e-8 in the denominator.
    Source: Geiping 2020.
    """

    name: ClassVar[str] = "cosine"
    source: ClassVar[str] = "Geiping 2020"

    def measure(self, guess: GradientGuess, observed: GradientGuess) -> Tensor:
        """See :class:`~privaudit.distances.base.Distance`."""
        # The root of zero has no derivative: a zero guess is kept off it.
        norms = (guess.square() + _EPSILON**2).sqrt() * observed.square().sqrt()
        return 1 - guess.inner(observed) / (norms + _EPSILON)
