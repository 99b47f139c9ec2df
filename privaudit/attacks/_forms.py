"""What a closed form answers: an image, or the condition that does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from privaudit.attacks._scene import Scene
from privaudit.tape import Tape

EXACT = 1e-4
"""Largest relative error of a recomputed observation that counts as a match."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """What one form made of one observation.

    Attributes:
        form: Its name.
        applies: The model has the structure that the form needs.
        reason: Why it did, or did not.
        images: (1, C, H, W); None when nothing was recovered.
        residual: Relative error of the part of the observation that it explains.
        unique: False where other images explain that part as well.
        tape: The client's masks, where they were read off.
    """

    form: str
    applies: bool
    reason: str
    images: Tensor | None = None
    residual: float | None = None
    unique: bool = True
    tape: Tape | None = None

    @property
    def exact(self) -> bool:
        """True when the observation is matched and nothing else would match it."""
        return (
            self.images is not None
            and self.unique
            and self.residual is not None
            and self.residual < EXACT
        )


Form = Callable[[Scene], Attempt]


def no_gradient(form: str, name: str) -> Attempt:
    """The layer the form reads has a gradient of exactly zero."""
    return Attempt(form, True, f"no information: the gradient of {name} is zero")
