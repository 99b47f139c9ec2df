"""Restarts that are averaged: begun in rounds, as many as time and memory allow.

How long several searches at once take is not known beforehand: where the model waits
for a device they cost as much as one. So one is made first, and then what fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privaudit.attacks._descend import Row
from privaudit.attacks._feature_loss import FeatureLoss
from privaudit.attacks._memory import is_short, let_go
from privaudit.config import Budget

STUCK = 2.0
"""A restart whose loss is more than so many times the best has no say in the mean."""
ENOUGH = 0.4
"""Share of a search's time that must be left for another to be begun."""
ROUNDING = 1e-3
"""Two losses of one image that are closer are the same: sizes of batches differ."""
MEAN = "the answer is the mean of"
"""How the note of a mean begins."""


@dataclass(frozen=True, eq=False)
class Searched:
    """What the restarts of some images found.

    Attributes:
        searches: Of each image its rows.
        unknowns: Values that one row optimised.
        left_out: How many restarts there was no time for.
        notes: For the reader.
    """

    searches: list[list[Row]]
    unknowns: int
    left_out: int
    notes: tuple[str, ...]


def search_in_rounds(
    search: Callable[[int, Budget], tuple[list[Row], int]],
    images: int,
    wanted: int,
    budget: Budget,
) -> Searched:
    """Search some images ``wanted`` times each, fewer where time is short.

    Args:
        search: Makes so many restarts of all images within a budget.
        images: How many; rows are those of one restart, then those of the next.
        wanted: Restarts; without a limit in seconds they are made at once.
        budget: Of all rounds together.
    """
    rounds: list[list[Row]] = []
    notes: tuple[str, ...] = ()
    done, unknowns, started = 0, 0, time.monotonic()
    room = wanted
    at_once = wanted if budget.seconds is None else 1
    while done < wanted:
        begun = time.monotonic()
        spent = begun - started
        left = None if budget.seconds is None else budget.seconds - spent
        try:
            rows, unknowns = search(
                at_once, budget.model_copy(update={"seconds": left})
            )
        except (RuntimeError, MemoryError) as error:
            if at_once == 1 or images > 1 or not is_short(error):
                raise
            let_go(error)
            room = at_once = at_once // 2
            notes = (f"out of memory: restarts were made {at_once} at once",)
            continue
        rounds.append(rows)
        done += at_once
        if any(r.end == "interrupted" for r in rows):
            break
        at_once = min(at_once, wanted - done)
        if left is not None:
            each = (time.monotonic() - begun) / (len(rows) // images)
            left -= time.monotonic() - begun
            if left < ENOUGH * each:
                break
            at_once = min(room, wanted - done, max(1, int(left / each)))
    searches = [[r for rows in rounds for r in rows[i::images]] for i in range(images)]
    return Searched(searches, unknowns, wanted - done, notes)


def best_of(runs: Sequence[Row]) -> Row:
    """The row with the smallest loss."""
    return min(runs, key=lambda r: r.value)


def mean_of(runs: Sequence[Row]) -> tuple[Row, int]:
    """The best row, the mean of what they found in its place, and of how many.

    Restarts agree in what the features say and differ in what each made up: their mean
    keeps the former and has little of the latter. Of all answers it has the least
    squared error to be expected.
    """
    best = best_of(runs)
    kept = [r.image for r in runs if r is best or r.value <= STUCK * best.value]
    return replace(best, image=torch.cat(kept).mean(0, keepdim=True)), len(kept)


def averaged(
    runs: Sequence[Row], loss: FeatureLoss
) -> tuple[Row, Tensor | None, tuple[str, ...]]:
    """The mean of what some restarts found, as a row; the best of them; a note.

    A mean need not fit the features. Then the loss told is that of the best search,
    which is a second answer, and the note says so.
    """
    best = best_of(runs)
    mean, count = mean_of(runs)
    if count == 1 or best.value == float("inf"):
        return best, None, ()
    with torch.no_grad():
        own = float(loss.matching(mean.image.to(loss.observed)))
    if own <= best.loss_final * (1 + ROUNDING):
        return replace(mean, loss_final=own), None, ()
    note = (
        f"{MEAN} {count} of {len(runs)} searches; its features fit worse than those of "
        "the best search, whose loss is told and whose image is a second answer"
    )
    return mean, best.image, (note,)
