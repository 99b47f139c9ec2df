"""What a form on token ids answers: ids, their order, or what does not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from privaudit.attacks._token_scene import TokenScene
from privaudit.types import LeakedIds

UNKNOWN = -1
"""Stands in a sequence where no id is known."""
FITS = 1e-3
"""Largest relative error of a position's numbers that counts as a match."""
CLEAR = 10.0
"""How much worse every other candidate must fit."""


@dataclass(frozen=True, eq=False)
class TokenAttempt:
    """What one form made of one observation.

    Attributes:
        form: Its name.
        applies: The model has the structure that the form needs.
        reason: Why it did, or did not.
        leaked: Ids per embedding, without order.
        sequence: (positions,) ids in order, ``UNKNOWN`` where none is known.
        residual: Relative error of the part of the observation that it explains.
        whole: True when every position that has a gradient is known.
        stopped: True when time was up before all candidates were tried.
    """

    form: str
    applies: bool
    reason: str
    leaked: Sequence[LeakedIds] = ()
    sequence: Tensor | None = None
    residual: float | None = None
    whole: bool = False
    stopped: bool = False


TokenForm = Callable[[TokenScene], TokenAttempt]


def not_one(scene: TokenScene) -> str | None:
    """The refusal of every form that reads an order off."""
    size = scene.observation.batch_size
    if size == 1:
        return None
    return f"needs a batch of 1, got {size}: the gradient is a sum over the batch"
