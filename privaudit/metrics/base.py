"""A metric is a pure function of two image batches, plus facts about it."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from privaudit._plugin import Plugin
from privaudit.errors import ConfigError
from privaudit.verdict import Score

if TYPE_CHECKING:
    from torch import Tensor


class Metric(Plugin):
    """Base of all metrics. A subclass states its facts and implements :meth:`measure`.

    Facts: ``unit``, ``bounds``, which side is leakier, and ``source``.
    """

    title: ClassVar[str]
    unit: ClassVar[str] = ""
    bounds: ClassVar[tuple[float, float]]
    lower_is_leakier: ClassVar[bool] = False
    scope: ClassVar[Literal["image", "set"]] = "image"
    """``image``: one value each; ``set``: one value for all images together."""
    identical_is_infinite: ClassVar[bool] = False
    """True where equal images have no finite value."""
    source: ClassVar[str]

    @abstractmethod
    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """Score ``guess`` against ``truth``.

        Args:
            truth: (batch, channels, height, width) in [0, 1].
            guess: The same shape and range, in the same order.

        Returns:
            Shape (batch,), or (1,) for metrics of the whole set. NaN where the
            metric is not defined.
        """

    def score(self, truth: Tensor, guess: Tensor) -> list[Score]:
        """Check both sides, measure, and say in words where there is no number.

        Raises:
            ConfigError: Shapes differ, or values are not pixels in [0, 1].
        """
        _check(truth, guess)
        reason = self.undefined(truth) or self.unavailable()
        if reason:
            count = 1 if self.scope == "set" else len(truth)
            return [Score(value=None, note=reason)] * count
        values = self.measure(truth.float(), guess.float()).double().tolist()
        note = self.note(truth)
        return [self._as_score(value, note) for value in values]

    def unavailable(self) -> str:
        """Why this metric cannot run on this machine at all; empty where it can."""
        return ""

    def undefined(self, truth: Tensor) -> str:
        """Why it has no value on images of this shape; empty where it has."""
        return ""

    def note(self, truth: Tensor) -> str:
        """What every score on images of this size has to say; mostly nothing."""
        return ""

    def _as_score(self, value: float, note: str) -> Score:
        if math.isfinite(value):
            return Score(value=value, note=note)
        if self.identical_is_infinite and value == math.inf:
            return Score(value=None, note="identical")
        return Score(value=None, note=f"{self.name} is not defined here")


def _check(truth: Tensor, guess: Tensor) -> None:
    if truth.dim() != 4 or not truth.numel():
        raise ConfigError(
            "metric",
            expected="at least one image, (batch, channels, height, width)",
            got=str(tuple(truth.shape)),
            hint="Score a batch of images.",
        )
    if truth.shape != guess.shape:
        raise ConfigError(
            "metric",
            expected=f"shape {tuple(truth.shape)} as the truth",
            got=str(tuple(guess.shape)),
            hint="Score images of one size.",
        )
    for side, images in (("truth", truth), ("reconstruction", guess)):
        _check_range(side, images)


def _check_range(side: str, images: Tensor) -> None:
    finite = images.float().isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        index = int((~finite).nonzero()[0])
        raise ConfigError(
            f"{side}, image {index}",
            expected="finite values",
            got="NaN or infinity",
            hint="A broken image is a failed attack, not a score.",
        )
    low, high = float(images.min()), float(images.max())
    if not images.is_floating_point() or low < 0 or high > 1:
        raise ConfigError(
            side,
            expected="float pixels in [0, 1]",
            got=f"{images.dtype} in [{low:g}, {high:g}]",
            hint="Map them back first: scores on normalised or 0-255 values are "
            "other numbers.",
        )
