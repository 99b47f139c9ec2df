"""A distance between two gradients: differentiable, zero where they agree."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.exposure.predict import GradientGuess


class Distance(Plugin):
    """Base of all distances. A subclass implements :meth:`measure`."""

    source: ClassVar[str]

    @abstractmethod
    def measure(self, guess: GradientGuess, observed: GradientGuess) -> Tensor:
        """A scalar, 0 where both agree.

        Args:
            guess: The gradient of the attacker's guess, with its graph.
            observed: What was observed, in the same form.
        """
