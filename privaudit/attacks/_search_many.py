"""Gradient matching for many clients at once: one loop, each as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privaudit.attacks._matching import Matching
from privaudit.attacks._minimise import Objective, Schedule, Unknown
from privaudit.attacks._minimise_many import minimise_many
from privaudit.attacks._refine import Refinement
from privaudit.attacks._search import Masks, Plan, report, start_of
from privaudit.config import Budget
from privaudit.distances import Cosine
from privaudit.exposure.many import (
    ManyGuess,
    NotSeparable,
    observed_many,
    predict_many,
)
from privaudit.priors import TotalVariation
from privaudit.tape import Tape
from privaudit.types import Batch, Reconstruction

_NONE = Refinement()


@dataclass(frozen=True, eq=False)
class Problem:
    """One client's search, before it starts."""

    matching: Matching
    plan: Plan


def search_together(
    problems: Sequence[Problem],
    *,
    schedule: Schedule,
    budget: Budget,
    generators: Sequence[torch.Generator],
    refinement: Refinement = _NONE,
) -> list[Reconstruction] | None:
    """:func:`search_many`, or None where the clients must go one at a time."""
    try:
        return search_many(
            problems, schedule=schedule, budget=budget, generators=generators,
            refinement=refinement,
        )  # fmt: skip
    except NotSeparable:
        return None


def search_many(
    problems: Sequence[Problem],
    *,
    schedule: Schedule,
    budget: Budget,
    generators: Sequence[torch.Generator],
    refinement: Refinement = _NONE,
) -> list[Reconstruction]:
    """Run all searches in one loop; starts are those of single runs.

    Args:
        problems: Of one attack on one model, batches of one size.
        schedule: Of the loop.
        budget: For all of them together.
        generators: One a client.
        refinement: Of each, one after the other.

    Raises:
        NotSeparable: These searches, or this model, do not allow it.
    """
    _require_alike(problems, schedule, budget)
    budget, refinement = refinement.split(problems[0].matching, budget)
    count = len(problems)
    starts = [
        start_of(p.matching, p.plan, g)
        for p, g in zip(problems, generators, strict=True)
    ]
    inputs = torch.cat([s.inputs for s in starts]).requires_grad_()
    single = [p.plan.masks() for p in problems]
    masks = [torch.cat(m).requires_grad_() for m in zip(*single, strict=True)]
    tape_of = _JoinedTape(problems, single)
    first = problems[0]
    labels = torch.cat([_labels(p) for p in problems])
    low, high = first.matching.box(inputs)
    observed: list[ManyGuess] = []

    def objective() -> Objective:
        images = first.matching.scale.invert(inputs)
        guess = predict_many(
            first.matching.target.exposure,
            first.matching.target.model,
            Batch(images, labels),
            tape_of(masks),
            victims=count,
        )
        if not observed:
            seen = [p.matching.observation.gradients for p in problems]
            observed.append(observed_many(guess, seen))
        products = guess.inner(observed[0]), guess.square(), observed[0].square()
        matching = Cosine.of(*products)
        each = inputs.view(count, -1, *inputs.shape[1:])
        total = matching
        for one in first.matching.priors:
            total = total + one.weight * torch.func.vmap(one.prior.penalty)(each)
        if first.plan.penalty is not None:
            split = [m.view(count, -1, *m.shape[1:]) for m in masks]
            total = total + torch.func.vmap(first.plan.penalty)(split)
        return Objective(matching, total)

    unknowns = [Unknown([inputs], lambda v: v.clamp(low, high), sign=True)]
    for index, mask in enumerate(masks):
        unknowns.append(Unknown([mask], _Held(problems, index, mask.detach().clone())))
    runs = minimise_many(
        objective, unknowns, victims=count, schedule=schedule, budget=budget
    )
    for i, (p, run) in enumerate(zip(problems, runs, strict=True)):
        refine = refinement.each(count - i)
        runs[i] = refine(p.matching, p.plan.tape_of, p.plan.held, run)
        if runs[i].end == "interrupted":
            # Ctrl-C ends them all; what is found so far stays.
            runs[i:] = [replace(r, end="interrupted") for r in runs[i:]]
            break
    return [
        report(p.matching, p.plan, [run], 1, path=f"{count} clients at once")
        for p, run in zip(problems, runs, strict=True)
    ]


def _require_alike(
    problems: Sequence[Problem], schedule: Schedule, budget: Budget
) -> None:
    """Only the plain case: everything else goes one at a time."""
    plain = all(
        p.matching.labels is not None
        and not p.matching.labels.is_floating_point()
        and type(p.matching.distance) is Cosine
        and all(type(w.prior) is TotalVariation for w in p.matching.priors)
        and p.plan.seeds == 1
        and p.plan.restarts == 1
        for p in problems
    )
    if not plain or schedule.optimiser != "adam" or (budget.restarts or 1) > 1:
        raise NotSeparable("only plain searches with known labels run together")
    if len({p.matching.observation.batch_size for p in problems}) > 1:
        raise NotSeparable("batches of several sizes")


def _labels(problem: Problem) -> Tensor:
    labels = problem.matching.labels
    if labels is None:
        raise NotSeparable("labels are unknown")
    return labels


class _JoinedTape:
    """The clients' tapes as one, samples one after the other."""

    def __init__(self, problems: Sequence[Problem], masks: Sequence[Masks]) -> None:
        tapes = [p.plan.tape_of(m) for p, m in zip(problems, masks, strict=True)]
        self._first = tapes[0]
        self._fixed: list[Tensor | None] = []
        self._place: dict[int, int] = {}
        size = problems[0].matching.observation.batch_size
        for index, draw in enumerate(self._first or ()):
            mine = [i for i, m in enumerate(masks[0]) if m is draw.value]
            if mine:
                self._place[index] = mine[0]
            self._fixed.append(None if mine else _joined(tapes, index, size))

    def __call__(self, masks: Masks) -> Tape | None:
        if self._first is None:
            return None
        values = list(self._fixed)
        for index, place in self._place.items():
            values[index] = masks[place]
        return self._first.with_values(values)


def _joined(tapes: Sequence[Tape | None], index: int, size: int) -> Tensor | None:
    """The values of one draw of all clients; None where it draws nothing."""
    values = [None if t is None else t.draws[index].value for t in tapes]
    known = [v for v in values if v is not None]
    if not known:
        return None
    if len(known) < len(values) or any(v.dim() == 0 or len(v) != size for v in known):
        raise NotSeparable("a mask is shared by the samples of a step")
    return torch.cat(known)


class _Held:
    """Puts the masks of all clients back into [0, 1], known entries to their value."""

    def __init__(self, problems: Sequence[Problem], index: int, start: Tensor) -> None:
        self._start = start
        held = [p.plan.held[index] if p.plan.held else None for p in problems]
        size = len(start) // len(problems)
        self._held: Tensor | None = None
        if any(h is not None for h in held):
            nothing = torch.zeros_like(start[:size], dtype=torch.bool)
            self._held = torch.cat([nothing if h is None else h for h in held])

    def __call__(self, values: Tensor) -> Tensor:
        clamped = values.clamp(0, 1)
        if self._held is None:
            return clamped
        return torch.where(self._held, self._start, clamped)
