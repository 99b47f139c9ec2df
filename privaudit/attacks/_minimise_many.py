"""The one loop for many independent victims at once: each has a schedule of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privaudit._progress import tick
from privaudit.attacks._minimise import (
    CHECK_EVERY,
    GAIN,
    MILESTONES,
    Descent,
    End,
    Objective,
    Schedule,
    Unknown,
    adam,
    steer,
)
from privaudit.attacks._replay import Moment, Slopes
from privaudit.config import Budget


def minimise_many(
    objective: Callable[[], Objective],
    unknowns: Sequence[Unknown],
    *,
    victims: int,
    schedule: Schedule,
    budget: Budget,
) -> list[Descent]:
    """Minimise the losses of all victims; what each gets is as if it were alone.

    Adam moves every entry by itself, so victims share its steps but not its learning
    rate: that shrinks for each on its own plateau. The loop ends once all have ended.

    Args:
        objective: Losses of shape (victims,) at the present values.
        unknowns: What is moved; samples of all victims lead, in order.
        victims: How many.
        schedule: Steps and when to stop; Adam only.
        budget: Seconds and iterations at most.
    """
    limit = min(schedule.iterations, budget.iterations or schedule.iterations)
    deadline = None if budget.seconds is None else time.monotonic() + budget.seconds
    leaves = [v for u in unknowns for v in u.values]
    slopes = Slopes(objective, leaves, limit, deadline, schedule.compiled)
    run = _Many(slopes, unknowns, victims, schedule)
    rest: End = "iterations"
    try:
        while run.done < limit:
            run.step()
            late = deadline is not None and time.monotonic() > deadline
            if run.done % CHECK_EVERY and run.done < limit and not late:
                continue
            finished = run.check()
            tick(run.done, limit, run.curves[0][-1][1])
            if finished:
                break
            if late:
                rest = "seconds"
                break
    except KeyboardInterrupt:
        rest = "interrupted"
    return run.results(rest)


@dataclass(eq=False)
class _Victim:
    """Where one victim's run stands."""

    rate: float = 1.0
    end: End | None = None
    iterations: int = 0
    since_best: int = 0
    since_shrink: int = 0
    best_seen: float = float("inf")
    reference: float = float("inf")

    def see(self, total: float, schedule: Schedule) -> None:
        """One more loss; ends the run or shrinks its steps where the schedule says."""
        if self.end is not None:
            return
        self.iterations += 1
        if total != total:
            self.end = "numerical"
            return
        self.since_best = 0 if total < self.best_seen else self.since_best + 1
        self.best_seen = min(total, self.best_seen)
        gained = total < self.reference * (1 - GAIN)
        self.since_shrink = 0 if gained else self.since_shrink + 1
        self.reference = total if gained else self.reference

    def settle(self, schedule: Schedule) -> None:
        """After each look: has it ended, are its steps too large."""
        if self.end is not None:
            return
        if self.best_seen < schedule.goal:
            self.end = "goal"
        elif self.since_best >= schedule.give_up:
            self.end = "plateau"
        elif self.since_shrink >= schedule.patience:
            self.since_shrink = 0
            self.rate *= schedule.shrink


@dataclass(eq=False)
class _Many:
    slopes: Slopes
    unknowns: Sequence[Unknown]
    victims: int
    schedule: Schedule
    done: int = 0
    pending: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    pictures: list[tuple[int, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leaves = self.slopes.leaves
        self.optimiser = adam(self.leaves, self.schedule)
        self.best = [v.detach().clone() for v in self.leaves]
        like = self.leaves[0].detach()
        self.best_total = like.new_full((self.victims,), float("inf"))
        self.best_matching = like.new_full((self.victims,), float("nan"))
        self.first = self.best_matching.clone()
        self.states = [_Victim() for _ in range(self.victims)]
        self.rates = like.new_ones(self.victims)
        self.curves: list[list[tuple[int, float]]] = [[] for _ in self.states]

    def step(self) -> None:
        """One iteration: losses here, keep what is best of each, then move."""
        moment = self.slopes()
        if self.slopes.broken:
            self._doubt()
        self._keep(moment)
        if self.done in MILESTONES:
            self.pictures.append((self.done, self.leaves[0].detach().clone()))
        steer(self.unknowns, moment)
        with torch.no_grad():
            self._move()
        self.done += 1

    def _move(self) -> None:
        """Adam's step for all, at each victim's own rate."""
        even = all(s.rate == 1 and s.end is None for s in self.states)
        before = [] if even else [v.detach().clone() for v in self.leaves]
        self.optimiser.step()
        for start, value in zip(before, self.leaves, strict=False):
            rate = self._each(self.rates, value)
            moved = torch.where(rate > 0, start + rate * (value - start), start)
            value.copy_(moved)
        for unknown in self.unknowns:
            for value in unknown.values:
                value.copy_(unknown.project(value))

    def _doubt(self) -> None:
        """The losses so far were not to be trusted: nobody has a best, or an end."""
        self.best_total.fill_(float("inf"))
        for index, state in enumerate(self.states):
            if state.end != "numerical":
                self.states[index] = _Victim(iterations=state.iterations)
        self.rates = torch.ones_like(self.rates)

    def _each(self, per_victim: Tensor, like: Tensor) -> Tensor:
        """``per_victim`` spread over the samples of ``like``."""
        spread = per_victim.repeat_interleave(len(like) // self.victims)
        return spread.view(-1, *[1] * (like.dim() - 1))

    def _keep(self, moment: Moment) -> None:
        total, matching, _ = moment
        if self.done == 0:
            self.first = matching.clone()
        better = (total < self.best_total) & (self.rates > 0)
        # On a device the question is answered there: nobody waits for it.
        if better.device.type != "cpu" or better.any():
            # Losses may be in another precision than the values.
            self.best_total = torch.where(better, total, self.best_total)
            self.best_matching = torch.where(better, matching, self.best_matching)
            for kept, value in zip(self.best, self.leaves, strict=True):
                torch.where(self._each(better, value), value.detach(), kept, out=kept)
        self.pending.append((total, matching))

    def check(self) -> bool:
        """Look at the losses since the last look; True once every victim has ended."""
        totals = torch.stack([t for t, _ in self.pending]).tolist()
        self.pending.clear()
        for index, state in enumerate(self.states):
            for row in totals:
                state.see(row[index], self.schedule)
            state.settle(self.schedule)
            if state.end is None or not self.curves[index]:
                self.curves[index].append((self.done, totals[-1][index]))
        # What has ended stands still: its best is kept, its place is not moved again.
        rates = [0.0 if s.end is not None else s.rate for s in self.states]
        self.rates = self.rates.new_tensor(rates)
        return all(s.end is not None for s in self.states)

    def results(self, rest: End) -> list[Descent]:
        """How each run ended; ``rest`` for those that were still going."""
        found = []
        for index, state in enumerate(self.states):
            found.append(
                Descent(
                    [self._own(b, index) for b in self.best],
                    float(self.first[index]),
                    float(self.best_matching[index]),
                    float(self.best_total[index]),
                    state.iterations or self.done,
                    state.end or rest,
                    self.curves[index],
                    [(i, self._own(p, index)) for i, p in self.pictures],
                )
            )
        return found

    def _own(self, values: Tensor, index: int) -> Tensor:
        """The part of one victim."""
        size = len(values) // self.victims
        return values[index * size : (index + 1) * size].clone()
