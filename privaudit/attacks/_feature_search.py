"""What attacks on features do around the loop: start, restart, answer per image."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from privaudit.attacks._descend import Course, Guess, Row, descend
from privaudit.attacks._feature_loss import (
    FeatureLoss,
    boundary_for,
    distance_for,
    require_features,
)
from privaudit.attacks._memory import Memory
from privaudit.attacks._restarts import averaged, best_of, search_in_rounds
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.types import (
    AttackState,
    FeatureObservation,
    FeatureTarget,
    Reconstruction,
    Search,
)

Starter = Callable[[slice, int, torch.Generator], Guess]
"""Which images, how many restarts, a generator → rows: all images of one restart,
then those of the next. Every image starts alike, so that none depends on the others."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some images that are searched together.

    Attributes:
        rows: Which of the observation's.
        loss: Of all restarts, those of one after those of the other.
        restarts: How many.
        budget: What may be spent.
        generator: Source of all randomness, the same for every part.
    """

    rows: slice
    loss: FeatureLoss
    restarts: int
    budget: Budget
    generator: torch.Generator


Searcher = Callable[[Part], tuple[list[Row], int]]
"""The rows that were found, and how many unknowns each had."""


@dataclass(frozen=True, eq=False)
class FeaturePlan:
    """How one attack searches.

    Attributes:
        search: Searches some images.
        distance: Name of the distance; None: as the layout asks.
        restarts: How often each image is searched, unless the budget says.
        together: Images in one loop: what memory allows.
        seams: Smooth what lies between patches.
        opponent: Smooth brightness and colours apart.
        average: Answer with the mean of the restarts, not with the best of them.
        form: What the reader is told it was.
        notes: Facts for the reader, asked for once all is done.
    """

    search: Searcher
    distance: str | None = None
    restarts: int = 1
    together: int = 16
    seams: bool = False
    opponent: bool = True
    average: bool = False
    form: str = "feature matching"
    notes: Callable[[], Sequence[str]] = tuple


def by_descent(
    course: Course,
    start: Starter,
    *,
    distance: str | None = None,
    restarts: int = 1,
    together: int = 16,
    opponent: bool = True,
    average: bool = False,
    form: str = "feature matching",
    notes: Sequence[str] = (),
) -> FeaturePlan:
    """Search by gradient descent on unknowns that ``start`` makes."""

    def search(part: Part) -> tuple[list[Row], int]:
        guess = start(part.rows, part.restarts, part.generator)
        rows = descend(guess, part.loss, course, part.budget)
        return rows, sum(v.numel() for v in guess.leaves) // len(rows)

    return FeaturePlan(
        search, distance, restarts, together, bool(course.seams), opponent, average,
        form, lambda: notes,
    )  # fmt: skip


def search_features(
    target: FeatureTarget,
    observation: FeatureObservation,
    *,
    plan: FeaturePlan,
    budget: Budget,
    generator: torch.Generator,
) -> list[Reconstruction]:
    """Search every image; the best of its restarts, or their mean, is its answer.

    Raises:
        AttackError: The features are zero, or not finite.
    """
    require_features(observation)
    seed = int(torch.randint(2**62, (), generator=generator))
    started, count = time.monotonic(), len(observation)
    memory = Memory(min(plan.together, count), budget.restarts or plan.restarts)
    found: list[Reconstruction] = []
    while len(found) < count:
        part = slice(len(found), min(len(found) + memory.together, count))
        size = part.stop - part.start
        left = _share(budget, started, -(-(count - len(found)) // memory.together))
        stop = _stop(found, left)
        if stop:
            found += [Reconstruction(None, "stopped", stop)] * size
            continue
        same = torch.Generator().manual_seed(seed)
        try:
            some = _search_part(target, observation, part, plan, left, same)
        except (RuntimeError, MemoryError) as error:
            reason = memory.fell_short(error, size)
        else:
            found += [replace(r, notes=(*r.notes, *memory.notes)) for r in some]
            continue
        if size == 1:
            notes = tuple(memory.notes)
            found.append(Reconstruction(None, "failed", reason, notes=notes))
    return found


def _share(budget: Budget, started: float, parts: int) -> Budget:
    if budget.seconds is None:
        return budget
    left = (budget.seconds - (time.monotonic() - started)) / parts
    return budget.model_copy(update={"seconds": left})


def _stop(found: Sequence[Reconstruction], left: Budget) -> str:
    """Why no further images are begun; empty: they are."""
    if any(r.reason == INTERRUPTED for r in found):
        return INTERRUPTED
    if left.seconds is not None and left.seconds <= 0:
        return "no time was left for this image"
    return ""


def _search_part(
    target: FeatureTarget,
    observation: FeatureObservation,
    part: slice,
    plan: FeaturePlan,
    budget: Budget,
    generator: torch.Generator,
) -> list[Reconstruction]:
    features = observation.features[part]
    count, restarts = len(features), budget.restarts or plan.restarts
    layout = target.exposure.layout
    boundary, note = boundary_for(layout, observation.image_shape)
    loss = FeatureLoss(
        target,
        features,
        distance_for(layout, plan.distance),
        boundary if plan.seams else None,
        plan.opponent,
    )

    def search(times: int, within: Budget) -> tuple[list[Row], int]:
        observed = features.repeat(times, *[1] * (features.dim() - 1))
        rows = replace(loss, observed=observed)
        return plan.search(Part(part, rows, times, within, generator))

    notes = (note,) if note and plan.seams else ()
    if not plan.average:
        found, unknowns = search(restarts, budget)
        notes = (*plan.notes(), *notes)
        each = [found[i::count] for i in range(count)]
        return [_answer(best_of(r), r, plan, notes, unknowns, count) for r in each]
    tried = search_in_rounds(search, count, restarts, budget)
    answers = []
    for index, runs in enumerate(tried.searches):
        alone = replace(loss, observed=features[index : index + 1])
        mean, other, said = averaged(runs, alone)
        told = (*plan.notes(), *notes, *tried.notes, *said)
        answer = _answer(mean, runs, plan, told, tried.unknowns, count)
        answers.append(replace(_in_full(answer, tried.left_out), other=other))
    return answers


def _in_full(answer: Reconstruction, left_out: int) -> Reconstruction:
    """Restarts that were not made are not hidden."""
    if not left_out or answer.state != "plateau" or answer.search is None:
        return answer
    done = answer.search.restarts
    reason = f"the time was up after {done} of {done + left_out} searches"
    return replace(answer, state="stopped", reason=reason)


def _answer(
    best: Row,
    runs: Sequence[Row],
    plan: FeaturePlan,
    notes: tuple[str, ...],
    unknowns: int,
    together: int,
) -> Reconstruction:
    """What is said of one image."""
    state, reason = _state(runs)
    if best.value == float("inf"):
        return Reconstruction(None, state, reason, notes=notes)
    return Reconstruction(
        best.image,
        state,
        reason,
        form=plan.form,
        notes=notes,
        search=Search(
            best.loss_start,
            best.loss_final,
            sum(r.iterations for r in runs),
            len(runs),
            unknowns,
            curve=best.curve,
            pictures=best.pictures,
            path=f"{together} image(s) at once",
        ),
    )


def _state(runs: Sequence[Row]) -> tuple[AttackState, str]:
    ends, last = {r.end for r in runs}, runs[-1].iterations
    if "interrupted" in ends:
        return "stopped", INTERRUPTED
    if ends == {"numerical"}:
        return "failed", f"numerical: no finite loss after {last} iteration(s)"
    if "seconds" in ends:
        return "stopped", f"the time was up after {last} iterations"
    if "budget" in ends:
        return "stopped", f"the budget allows no more than {last} iterations"
    kept = runs[0].end if runs[0].end != "numerical" else runs[-1].end
    return "plateau", f"ended by {kept} after {last} iterations"
