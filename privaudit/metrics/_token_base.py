"""A metric on token ids is a pure function of what was held and what was found."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin
from privaudit.verdict import Score

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import TokenBatch, TokenReconstruction


class TokenMetric(Plugin):
    """Base of all metrics on token ids. Higher is leakier.

    Padding is nobody's and never counts, neither for nor against.
    """

    title: ClassVar[str]
    unit: ClassVar[str]
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    source: ClassVar[str]

    @abstractmethod
    def measure(self, truth: TokenBatch, guess: TokenReconstruction) -> Tensor:
        """Score what an attack found against what the client held.

        Args:
            truth: The client's ids.
            guess: What the attack made of its gradient.

        Returns:
            Shape (batch,); NaN where the metric is not defined.
        """

    def score(self, truth: TokenBatch, guess: TokenReconstruction) -> list[Score]:
        """Measure, and say in words where there is no number."""
        values = self.measure(truth, guess).double().tolist()
        note = self.missing(guess)
        return [
            Score(value=v) if math.isfinite(v) else Score(value=None, note=note)
            for v in values
        ]

    @abstractmethod
    def missing(self, guess: TokenReconstruction) -> str:
        """Why there is no number, in a few words."""
