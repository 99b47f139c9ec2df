"""How a guess is held against an observation, countermeasures included."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from privaudit.distances import Distance
from privaudit.exposure import relative_error
from privaudit.exposure.predict import GradientGuess, observed_as
from privaudit.types import Target


def observed_for(
    target: Target, guess: GradientGuess, gradients: Mapping[str, Tensor]
) -> GradientGuess:
    """The observation in the form in which it is compared.

    Countermeasures look at every entry as it was sent, so nothing is factored then.
    """
    if target.comparisons:
        return GradientGuess({}, {n: g.detach() for n, g in gradients.items()})
    return observed_as(guess, gradients)


def apart(
    distance: Distance, target: Target, guess: GradientGuess, observed: GradientGuess
) -> Tensor:
    """The distance of ``guess`` to what :func:`observed_for` gave, a scalar."""
    if not target.comparisons:
        return distance.measure(guess, observed)
    mine: Mapping[str, Tensor] = {
        **guess.dense, **{n: r.dense() for n, r in guess.rows.items()}
    }  # fmt: skip
    theirs = observed.dense
    for compare in target.comparisons:
        mine, theirs = compare(mine, theirs)
    return distance.measure(GradientGuess({}, mine), GradientGuess({}, theirs))


def error_of(
    target: Target, guess: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> float:
    """Relative error of ``guess`` over all tensors of ``gradients``, as compared."""
    mine: Mapping[str, Tensor] = dict(guess)
    theirs: Mapping[str, Tensor] = dict(gradients)
    for compare in target.comparisons:
        mine, theirs = compare(mine, theirs)
    return relative_error(mine, theirs)
