"""What the judge gets to see. Numbers and words only: no tensor, no model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from privaudit.verdict.policy import Kind

AttackState = Literal[
    "exact", "converged", "plateau", "stopped", "failed", "skipped", "missing"
]
"""How an attack ended.

``exact``: the recomputed observation matches (relative error < 1e-4) ·
``converged``: the matching loss fell to 1 % of its way to the loss at the truth ·
``plateau``: stopped by itself after all its restarts · ``stopped``: out of budget ·
``failed``: broke · ``skipped``: for an allowed reason · ``missing``: required, not run.
"""

SkipReason = Literal["not applicable", "superseded", "already exact"]

RAN: frozenset[AttackState] = frozenset(
    {"exact", "converged", "plateau", "stopped", "failed"}
)


class Score(BaseModel):
    """One metric of one sample. ``value`` is None where it could not be computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | None
    note: str = ""
    """Why there is no value, or what it means ("identical" for an infinite PSNR)."""


class AttackEvidence(BaseModel):
    """How one attack ended and what it scored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    state: AttackState
    required: bool = True
    """True for every applicable adaptive attack of the exposure's ladder."""
    diagnostic: bool = False
    """True when it used knowledge a real attacker lacks: it never decides."""
    skip: SkipReason | None = None
    reason: str = ""
    scores: dict[str, list[Score]] = Field(default_factory=dict)
    """Per metric one score per sample; metrics of the whole set have one entry."""


class ControlEvidence(BaseModel):
    """Positive control: the same ladder on a case that it must solve."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    passed: bool
    detail: str = ""


class UnrelatedPairs(BaseModel):
    """Negative control: what a metric says about images that are not related."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str
    pairs: int = Field(ge=0)
    p95: float
    """The 95th percentile towards "leakier" (the 5th for distances)."""


class Partial(BaseModel):
    """How far an audit came that was interrupted by hand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attack: str
    """Which attack was running."""
    done: int = Field(ge=0)
    """Images that it was through with."""
    total: int = Field(ge=0)


class Evidence(BaseModel):
    """Everything a verdict rests on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int = Field(ge=0)
    kind: Kind = "images"
    """What the samples are: decides which limits apply."""
    exposure: Literal["gradient", "features"] = "gradient"
    """What the attacker saw; texts say it."""
    skipped_inputs: int = Field(default=0, ge=0)
    """Inputs that were given and could not be audited."""
    truth_error: float | None = None
    """Relative error of the gradient that the audit recomputes at the truth."""
    noise_floor: float | None = None
    """Relative rounding of a step in reduced precision, which the error may show."""
    truth_known: bool = True
    """False where nobody gave the images: nothing is scored, and nothing cleared."""
    partial: Partial | None = None
    """Where Ctrl-C ended the audit; None: it ran to its end."""
    attacks: list[AttackEvidence] = Field(default_factory=list)
    misfits: dict[str, float] = Field(default_factory=dict)
    """Attacks whose prior knows other images: by how many dB it denoises these worse
    than its own."""
    positive_control: ControlEvidence | None = None
    unrelated: list[UnrelatedPairs] = Field(default_factory=list)
