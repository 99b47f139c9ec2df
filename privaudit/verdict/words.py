"""The verdict record, and the one line, one code that every surface prints."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from privaudit.verdict.policy import Kind, Strength

Word = Literal["leaks", "no leak found", "inconclusive", "not run"]

EXIT_PASS = 0
EXIT_LEAK = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_NOTHING_AUDITED = 4


class Worst(BaseModel):
    """The leakiest value of one metric over all attacks that count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str
    value: float
    attack: str
    sample: int | None
    """Index of the image; None for metrics of the whole set."""
    limit: float
    """The limit in force, the distance from unrelated pairs included."""
    leaks: bool

    @property
    def margin(self) -> float:
        """Distance to the limit; positive means below it (not leaking)."""
        return self.limit - self.value


PARTIAL = "partial"
"""Code of the cause that every final line tells, whatever the word."""


class Cause(BaseModel):
    """One reason for an inconclusive verdict, or a note, with what to do about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    text: str
    remedy: str


class Verdict(BaseModel):
    """What the evidence says under one policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    word: Word
    strength: Strength | None = None
    """Only for "no leak found": ``strong`` when every required attack was exact or
    converged, ``weak`` when some ended in a plateau."""
    exit_code: int
    policy: str
    samples: int
    worst: dict[str, Worst] = Field(default_factory=dict)
    leaks: list[Worst] = Field(default_factory=list)
    """Worst leak of each attack and metric beyond its limit."""
    causes: list[Cause] = Field(default_factory=list)
    warnings: list[Cause] = Field(default_factory=list)
    leaking_share_upper_bound: float | None = None
    """Rule of three: with no leak in n samples, at most 3/n leak (95 %)."""
    line: str

    def headline(self) -> str:
        """The verdict word with its strength, as shown on the first screen."""
        return f"{self.word} ({self.strength})" if self.strength else self.word


def final_line(
    word: Word,
    *,
    worst: Worst | None,
    code: int,
    causes: list[Cause],
    kind: Kind = "images",
) -> str:
    """Verdict, worst sample, metric, value, limit, exit code: the line CI prints."""
    parts = [f"privaudit: {word}"]
    if worst is not None:
        noun = "image" if kind == "images" else "sample"
        where = f"all {noun}s" if worst.sample is None else f"{noun} {worst.sample}"
        relation = "beyond" if worst.leaks else "within"
        parts.append(
            f"worst {where} by {worst.attack}: {worst.metric} {_number(worst.value)} "
            f"{relation} limit {_number(worst.limit)}"
        )
    told = [c for c in causes if word != "leaks" or c.code == PARTIAL]
    if told:
        parts.append(told[0].text)
    parts.append(f"exit {code}")
    return " | ".join(parts)


def _number(value: float) -> str:
    """Four decimals; small errors, which would all read 0.0000, in powers of ten."""
    small = 0 < abs(value) < 5e-4
    return f"{value:.1e}" if small else f"{value:.4f}"
