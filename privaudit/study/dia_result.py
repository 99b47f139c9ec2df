"""Ours beside the paper's: what was run, summed up per line of the tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from privaudit.study.dia_paper import METRICS, SOURCE, PaperRow
from privaudit.study.keys import Cell

NOT_RUN = "not run"
OURS = ("ssim", "ssim_range_2", *(m for m in METRICS if m != "ssim"))
_LIKE = {"ssim": "ssim_range_2"}
"""The paper's metric, and ours that is computed as the paper's seems to be."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stat(_Record):
    """Mean and spread over images; ``count`` of them had a value."""

    mean: float
    std: float
    count: int


class WorstCase(_Record):
    """The best reconstruction of each victim by any attack that a real one has."""

    ssim: Stat
    ssim_range_2: Stat | None = None
    """Of the same images, as the paper measures it."""
    attacks: dict[str, int]
    """Which attack gave it, for how many victims."""
    victims: int
    seconds: float = 0.0
    """Of these attacks, wall clock, over all victims; weaker rungs not counted."""


class RowResult(_Record):
    """One line of a table, with what was run for it."""

    paper: PaperRow
    victims: int
    """Asked for."""
    done: int
    """Of these, run to the end."""
    note: str = ""
    """``not run``, or why it cannot be, or how much is missing."""
    ours: dict[str, Stat] = Field(default_factory=dict)
    difference: dict[str, float] = Field(default_factory=dict)
    """Ours minus the paper's, by the paper's metric; SSIM as ``ssim_range_2``."""
    states: dict[str, int] = Field(default_factory=dict)
    iterations: tuple[int, int] | None = None
    """Fewest and most."""
    seconds: float = 0.0
    """Wall clock, all victims."""
    cpu_seconds: float = 0.0
    """Of the process, all threads."""
    worst: WorstCase | None = None


class DiaResult(_Record):
    """The document that ``reproduce dia`` writes."""

    schema_version: Literal["1"] = "1"
    paper: str = SOURCE
    privaudit: str
    started: str
    """UTC, ISO 8601."""
    victims: int
    """Asked for, per line."""
    iterations: int | None
    """A cap below the attacks' own; None: the paper's schedule."""
    interrupted: bool
    only_worst_case: bool = False
    """True: the lines' own attacks were not asked for."""
    rows: list[RowResult]
    code_states: int
    """How many states of the source the units were made by."""
    notes: list[str]

    @property
    def units(self) -> tuple[int, int]:
        """Done, and asked for, over all lines that can be run here."""
        rows = [r for r in self.rows if not r.paper.missing]
        if self.only_worst_case:
            cases = {r.paper.case: r for r in rows}.values()
            climbed = sum(r.worst.victims for r in cases if r.worst)
            return climbed, sum(r.victims for r in cases)
        return sum(r.done for r in rows), sum(r.victims for r in rows)

    @property
    def complete(self) -> bool:
        """True when every victim asked for was attacked, and nothing broke."""
        done, asked = self.units
        return done == asked and not any("failed" in r.states for r in self.rows)


def summed_up(
    paper: PaperRow, cells: Sequence[Cell], victims: int, worst: WorstCase | None
) -> RowResult:
    """One line from its finished units.

    Args:
        paper: The line.
        cells: Its finished units, at most one per victim.
        victims: How many were asked for.
        worst: Of the same victims.
    """
    if not cells:
        note = f"{NOT_RUN}: {paper.missing}" if paper.missing else NOT_RUN
        return RowResult(paper=paper, victims=victims, done=0, note=note, worst=worst)
    ours = {m: s for m in OURS if (s := stat(_values(cells, m))) is not None}
    counts = [int(_number(c.values["iterations"])) for c in cells]
    return RowResult(
        paper=paper,
        victims=victims,
        done=len(cells),
        note="" if len(cells) == victims else f"{len(cells)} of {victims} victims",
        ours=ours,
        difference={
            m: ours[like].mean - mean
            for m, mean in paper.mean.items()
            if (like := _LIKE.get(m, m)) in ours
        },
        states=dict(Counter(str(c.values["state"]) for c in cells)),
        iterations=(min(counts), max(counts)),
        seconds=math.fsum(_number(c.values["seconds"]) for c in cells),
        cpu_seconds=math.fsum(_number(c.values["cpu_seconds"]) for c in cells),
        worst=worst,
    )


def worst_case(by_victim: Iterable[Mapping[str, Cell]]) -> WorstCase | None:
    """The strongest of what was run on each victim; None where nothing scored.

    Args:
        by_victim: Per victim its finished units by attack, diagnostic ones left out.
    """
    best = [b for cells in by_victim if (b := _strongest(cells)) is not None]
    cells = [cell for _, cell in best]
    ssim = stat(_values(cells, "ssim"))
    if ssim is None:
        return None
    return WorstCase(
        ssim=ssim,
        ssim_range_2=stat(_values(cells, "ssim_range_2")),
        attacks=dict(Counter(name for name, _ in best)),
        victims=len(best),
        seconds=math.fsum(_number(c.values["seconds"]) for c in cells),
    )


def stat(values: Iterable[float | None]) -> Stat | None:
    """Mean and population spread of what has a value; None where nothing has."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / len(known))
    return Stat(mean=mean, std=spread, count=len(known))


def _strongest(cells: Mapping[str, Cell]) -> tuple[str, Cell] | None:
    """The attack with the best mean SSIM over one victim's images."""
    means = {name: stat(_values([cell], "ssim")) for name, cell in cells.items()}
    scored = {name: found.mean for name, found in means.items() if found}
    if not scored:
        return None
    name = max(scored, key=scored.__getitem__)
    return name, cells[name]


def _values(cells: Iterable[Cell], metric: str) -> list[float | None]:
    """One value per image, or one per victim for the masks."""
    found: list[float | None] = []
    for cell in cells:
        found += as_list(cell.values[metric])
    return found


def as_list(value: Any) -> list[float | None]:
    """One number or several, as numbers."""
    listed = value if isinstance(value, list) else [value]
    return [None if v is None else float(v) for v in listed]


def _number(value: Any) -> float:
    return float(value)
