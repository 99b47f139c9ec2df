"""Several local steps are searched in two legs: taken for one step first, then as sent.

The first leg is cheap and finds the neighbourhood: the difference is about the gradient
of all images at the first weights. From noise the simulated steps lead into places that
the search does not leave again. Source: measured (docs/compute.md).
"""

from __future__ import annotations

from dataclasses import replace

from privaudit.attacks._matching import Matching, Start, UnknownMasks
from privaudit.attacks._minimise import Descent, Schedule
from privaudit.config import Budget

FIRST_LEG = 0.25
"""Share of the iterations, and of the seconds, of the first leg."""
FINER = 0.2
"""Factor on the learning rate of the second leg, which starts near its end."""

_NO_MASKS = UnknownMasks([], lambda _: None)


def minimise(
    matching: Matching,
    start: Start,
    *,
    unknown_masks: UnknownMasks,
    schedule: Schedule,
    budget: Budget,
) -> Descent:
    """As :meth:`Matching.minimise`; for several local steps in two legs."""
    local = matching.target.exposure.local
    if local is None or local.count == 1:
        return matching.minimise(
            start, unknown_masks=unknown_masks, schedule=schedule, budget=budget
        )
    first = _as_one_step(matching).minimise(
        start,
        unknown_masks=_NO_MASKS,
        schedule=_shortened(schedule),
        budget=_share(budget, FIRST_LEG),
    )
    if first.end == "interrupted":
        budget = budget.model_copy(update={"iterations": 1})
    found = Start(first.best[0], None if start.logits is None else first.best[1])
    second = matching.minimise(
        start if first.total_best == float("inf") else found,
        unknown_masks=unknown_masks,
        schedule=_finer(schedule),
        budget=_share(budget, 1 - FIRST_LEG),
    )
    end = first.end if first.end == "interrupted" else second.end
    return replace(second, end=end, iterations=first.iterations + second.iterations)


def _as_one_step(matching: Matching) -> Matching:
    target = matching.target
    exposure = replace(target.exposure, local=None)
    return replace(matching, target=replace(target, exposure=exposure))


def _shortened(schedule: Schedule) -> Schedule:
    few = max(1, round(schedule.iterations * FIRST_LEG))
    return schedule.model_copy(update={"iterations": few})


def _finer(schedule: Schedule) -> Schedule:
    left = max(1, schedule.iterations - round(schedule.iterations * FIRST_LEG))
    update: dict[str, float] = {"iterations": left}
    if schedule.optimiser == "adam":
        update["learning_rate"] = schedule.learning_rate * FINER
    return schedule.model_copy(update=update)


def _share(budget: Budget, part: float) -> Budget:
    """That part of the seconds and of the iterations, where they are bounded."""
    seconds, iterations = budget.seconds, budget.iterations
    return budget.model_copy(
        update={
            "seconds": None if seconds is None else seconds * part,
            "iterations": None
            if iterations is None
            else max(1, round(iterations * part)),
        }
    )
