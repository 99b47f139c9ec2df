"""Attack success rate: the share of images beyond a threshold, for every threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from privaudit.errors import ConfigError
from privaudit.metrics.base import Metric
from privaudit.verdict import Score

NO_RECONSTRUCTION = "no reconstruction"
"""What a score says where the attack gave no image: that image was not hit."""
GRID = tuple(step / 20 for step in range(21))
"""0, 0.05 … 1, for similarities."""


class SuccessCurve(BaseModel):
    """How many images an attack got, for every idea of "got".

    Attributes:
        metric: Name of the metric.
        lower_is_leakier: True where below the threshold is a hit.
        thresholds: Rising.
        rates: Share of ``images`` strictly beyond each threshold, in [0, 1].
        images: How many were judged; those without a reconstruction count as missed.
        unscored: How many were left out since the metric has no value on them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str
    lower_is_leakier: bool
    thresholds: list[float]
    rates: list[float]
    images: int
    unscored: int


def success_rate(
    metric: Metric, scores: Sequence[Score], thresholds: Sequence[float] = GRID
) -> SuccessCurve:
    """Turn the scores of one attack into its success rate over the threshold.

    Args:
        metric: What was measured: says which side is leakier.
        scores: One per image. "identical" is a hit at every threshold.
        thresholds: In the metric's unit, rising.

    Raises:
        ConfigError: Thresholds that do not rise, or no image with a score.

    Example:
        >>> from privaudit.metrics import Ssim
        >>> scores = [Score(value=v) for v in (0.2, 0.6, 0.9)]
        >>> success_rate(Ssim(), scores, [0.5, 0.8]).rates
        [0.6666666666666666, 0.3333333333333333]

    Source: Lei 2025, section 4.1, who fix the threshold.
    """
    _check_rising(thresholds)
    judged = [v for v in (_leakiness(metric, s) for s in scores) if v is not None]
    if not judged:
        raise ConfigError(
            f"success rate of {metric.name}",
            expected="at least one image with a score",
            got=f"{len(scores)} without",
            hint=scores[0].note if scores else "Score the attack's images first.",
        )
    sign = -1 if metric.lower_is_leakier else 1
    return SuccessCurve(
        metric=metric.name,
        lower_is_leakier=metric.lower_is_leakier,
        thresholds=list(thresholds),
        rates=[sum(v > sign * t for v in judged) / len(judged) for t in thresholds],
        images=len(judged),
        unscored=len(scores) - len(judged),
    )


def _leakiness(metric: Metric, score: Score) -> float | None:
    """The score with "more is leakier"; None where there is nothing to judge."""
    if score.value is not None:
        return -score.value if metric.lower_is_leakier else score.value
    if score.note == NO_RECONSTRUCTION:
        return -math.inf
    return math.inf if score.note == "identical" else None


def _check_rising(thresholds: Sequence[float]) -> None:
    if not thresholds or any(not a < b for a, b in pairwise(thresholds)):
        raise ConfigError(
            "thresholds",
            expected="at least one value, rising",
            got=str(list(thresholds))[:80],
            hint="Sort them, and leave out repetitions.",
        )
