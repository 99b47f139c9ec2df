"""Ours beside the paper's, for Lei 2025: what was run, summed up per line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from privaudit.study.dia_result import NOT_RUN, Stat, stat
from privaudit.study.drag_paper import COMPARED, SOURCE, PaperRow
from privaudit.study.keys import Cell


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RowResult(_Record):
    """One line of a table, with what was run for it."""

    paper: PaperRow
    images: int
    """Asked for."""
    done: int
    """Of these, attacked to the end."""
    missing: str = ""
    """Why it, or some of its images, cannot be run here; empty where all can."""
    ours: dict[str, Stat] = Field(default_factory=dict)
    """Per metric; ``seconds`` is per image, on this machine."""
    difference: dict[str, float] = Field(default_factory=dict)
    """Ours minus the paper's."""
    states: dict[str, int] = Field(default_factory=dict)
    iterations: tuple[int, int] | None = None
    """Fewest and most."""
    machines: list[str] = Field(default_factory=list)
    """Devices that they were run on."""

    @property
    def note(self) -> str:
        """What is not as it should be, in words; empty where all is."""
        if not self.done:
            return f"{NOT_RUN}: {self.missing}" if self.missing else NOT_RUN
        part = "" if self.done == self.images else f"{self.done} of {self.images}"
        return "; ".join(filter(None, [part, self.missing]))


class DragResult(_Record):
    """The document that ``reproduce drag`` writes."""

    schema_version: Literal["1"] = "1"
    paper: str = SOURCE
    privaudit: str
    started: str
    """UTC, ISO 8601."""
    images: list[str]
    """Names of those that were asked for."""
    iterations: int | None
    """A cap below the attacks' own; None: the paper's schedule."""
    interrupted: bool
    rows: list[RowResult]
    metrics_off: dict[str, str]
    """Scores that cannot be made here, with the reason."""
    remedies: dict[str, str]
    """How to get what ``missing`` of a line names."""
    code_states: int
    """How many states of the source the units were made by."""
    notes: list[str]

    @property
    def units(self) -> tuple[int, int]:
        """Done, and asked for, over all lines that can be run here."""
        rows = [r for r in self.rows if not r.missing]
        return sum(r.done for r in rows), sum(r.images for r in rows)

    @property
    def complete(self) -> bool:
        """True when all that can be run here was run, and nothing broke."""
        done, asked = self.units
        return done == asked and not any("failed" in r.states for r in self.rows)


def summed_up(
    paper: PaperRow,
    cells: Sequence[Cell],
    *,
    images: int,
    missing: str,
    scores: Mapping[str, Sequence[float | None]],
) -> RowResult:
    """One line from its finished units.

    Args:
        paper: The line.
        cells: Its finished units, one an image at most.
        images: How many were asked for.
        missing: Why some cannot be run here.
        scores: Per metric, one an image of ``cells``.
    """
    if not cells:
        return RowResult(paper=paper, images=images, done=0, missing=missing)
    ours = {m: s for m, values in scores.items() if (s := stat(values)) is not None}
    seconds = stat([_number(c, "seconds") for c in cells])
    ours |= {"seconds": seconds} if seconds else {}
    theirs = {m: v for m, v in paper.mean.items() if m in COMPARED}
    theirs |= {} if paper.seconds is None else {"seconds": paper.seconds}
    counts = [int(_number(c, "iterations")) for c in cells]
    return RowResult(
        paper=paper,
        images=images,
        done=len(cells),
        missing=missing,
        ours=ours,
        difference={m: ours[m].mean - v for m, v in theirs.items() if m in ours},
        states=dict(Counter(str(c.values["state"]) for c in cells)),
        iterations=(min(counts), max(counts)),
        machines=sorted({str(c.values["device"]) for c in cells}),
    )


def _number(cell: Cell, name: str) -> float:
    value = float(str(cell.values[name]))
    return value if math.isfinite(value) else 0.0
