"""Of two answers of one attack, the one that leaks more."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from privaudit._align import assignment
from privaudit.types import Batch, Reconstruction

NOTE = "refined by Gauss-Newton steps too, to images that are further from the client's"


def nearer(found: Reconstruction, batch: Batch) -> Reconstruction:
    """``found``, or what it was before it was refined if that is nearer to the truth.

    A better fit is a better image only where the gradient determines the image. An
    attacker would keep both, so the nearer one counts.
    """
    other = found.unrefined
    if other is None:
        return found
    found = replace(found, unrefined=None)
    if found.images is None or other.images is None:
        return found if other.images is None else other
    refined, plain = (_apart(batch.images, g) for g in (found.images, other.images))
    if plain < refined:
        return replace(other, notes=(*other.notes, NOTE))
    return found


def _apart(truth: Tensor, guess: Tensor) -> float:
    """Mean squared error, the images of a batch in the order that suits best."""
    guess = guess.to(truth)[assignment(truth, guess)]
    return float((guess - truth).square().mean())
