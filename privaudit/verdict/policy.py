"""What counts as a leak: limits per metric, named and versioned."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from privaudit.errors import ConfigError

Level = Literal["off", "warn", "error"]
Aggregate = Literal["max", "p95", "mean"]
Strength = Literal["weak", "strong"]
Kind = Literal["images", "tokens"]
"""What the samples of an audit are."""

RE_IDENTIFICATION = "re_identification"
GRADIENT_MATCH = "gradient_match"
"""Relative error of the whole recomputed gradient: what can be measured without the
truth. The only value that may decide there, and it can only say "leaks"."""
MIN_CONTROL_PAIRS = 20
TRUTH_TOLERANCE = 1e-3
"""Above rounding in deep float32 networks, below anything a mask could change."""
NOISE_FACTOR = 2.0
"""Reduced precision rounds a gradient, differently on each machine: an error of up to
twice that noise is rounding, not another image."""
MIN_IMAGES_FOR_RE_IDENTIFICATION = 20
CHANCE_FACTOR = 5.0
TOKEN_METRICS = ("token_set_recall", "token_accuracy")
"""What a leak of token ids is measured in; image metrics say nothing there."""


def above_noise(tolerance: float, noise_floor: float | None) -> float:
    """``tolerance``, or what rounding alone may take where that is more."""
    return max(tolerance, NOISE_FACTOR * (noise_floor or 0.0))


class Limit(BaseModel):
    """The limit of one metric.

    A sample leaks when its score is beyond ``limit`` and, where ``margin`` is set,
    at least ``margin`` beyond the 95th percentile of unrelated pairs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: float
    """Highest harmless value (lowest, when ``lower_is_leakier``)."""
    level: Level = "error"
    """``error`` decides the verdict, ``warn`` is reported, ``off`` is ignored."""
    over: Aggregate = "max"
    """Which value of the samples is compared: the worst, the worst 5 %, the mean."""
    margin: float | None = Field(default=None, ge=0)
    """Least distance from unrelated pairs; None: the limit alone decides."""
    lower_is_leakier: bool = False
    """True for distances such as MSE, where a small value means a good copy."""
    required: bool = False
    """True: an attack without this metric clears nothing. Set for limits given by
    hand, since a limit that nobody measured must not pass."""


def _default_limits() -> dict[str, Limit]:
    return {
        "ssim": Limit(limit=0.5, margin=0.1, required=True),
        "ms_ssim": Limit(limit=0.6, margin=0.1),
        RE_IDENTIFICATION: Limit(limit=0.05),
        **_token_limits(),
    }


def _token_limits() -> dict[str, Limit]:
    """More than half of a text: no margin, since ids are read off, not resembled."""
    return {name: Limit(limit=0.5) for name in TOKEN_METRICS}


class Policy(BaseModel):
    """Limits per metric and how strong a "no leak found" has to be.

    The preset ``default-1`` never changes; other limits carry another name.
    Source: SSIM above .6 is called critical by Scheliga 2023; the limit is below it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "default-1"
    limits: dict[str, Limit] = Field(default_factory=_default_limits)
    require: Strength = "weak"

    def for_kind(self, kind: Kind) -> Policy:
        """The limits that samples of this kind are judged by.

        Token ids are always judged: a policy that names no limit for them gets the
        preset's, for nothing else would see the leak.
        """
        if kind == "images":
            return self
        limits = {n: self.limits.get(n, d) for n, d in _token_limits().items()}
        # Every attack finds a set; one that was not scored has cleared nothing.
        measured = limits["token_set_recall"].model_copy(update={"required": True})
        limits["token_set_recall"] = measured
        return self.model_copy(update={"limits": limits})

    def with_limit(self, metric: str, value: float) -> Policy:
        """Return a copy whose ``metric`` has another limit.

        Raises:
            ConfigError: The metric has no entry in this policy.
        """
        if metric not in self.limits:
            raise ConfigError(
                f"Policy.limits[{metric!r}]",
                expected=f"one of {', '.join(sorted(self.limits))}",
                got=repr(metric),
                hint="Name a metric that this version measures.",
            )
        if value != value or value in (float("inf"), float("-inf")):
            raise ConfigError(
                f"Policy.limits[{metric!r}]",
                expected="a finite number",
                got=str(value),
                hint="Give the highest value that is still acceptable.",
            )
        limit = self.limits[metric].model_copy(
            update={"limit": value, "required": True}
        )
        return self.model_copy(
            update={
                "name": f"{self.name.removesuffix('+changed')}+changed",
                "limits": {**self.limits, metric: limit},
            }
        )
