"""The one loop: every optimisation attack fills its slots and runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from privaudit._progress import tick
from privaudit.attacks._replay import Moment, Slopes, Way
from privaudit.config import Budget

End = Literal["goal", "plateau", "iterations", "seconds", "numerical", "interrupted"]

CHECK_EVERY = 10
"""Iterations between two looks at the loss: each look waits for the device."""
_KEPT_PICTURES = 8
GAIN = 1e-4


@dataclass(frozen=True, eq=False)
class Objective:
    """What is minimised: matching loss, and the total with its penalties."""

    matching: Tensor
    total: Tensor


@dataclass(frozen=True, eq=False)
class Unknown:
    """One group of values that the loop moves.

    Attributes:
        values: Leaf tensors; changed in place.
        project: Puts them back into their range after each step.
        sign: True gives the optimiser the sign of the gradient only.
    """

    values: Sequence[Tensor]
    project: Callable[[Tensor], Tensor]
    sign: bool = False


class Schedule(BaseModel):
    """Adam, or L-BFGS, with steps that shrink on a plateau.

    Defaults: Geiping 2020, as Scheliga 2023 use it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimiser: Literal["adam", "lbfgs"] = "adam"
    """``lbfgs``: Liu 1989 as torch has it, without a line search."""
    learning_rate: float = Field(default=0.1, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    """Of Adam."""
    evaluations: int = Field(default=20, ge=1)
    """L-BFGS: losses computed in one iteration."""
    history: int = Field(default=100, ge=1)
    """L-BFGS: steps that the estimate of the curvature rests on."""
    shrink: float = Field(default=0.1, gt=0, lt=1)
    """Factor on the learning rate at a plateau."""
    patience: int = Field(default=800, ge=1)
    """Iterations without a gain of 1e-4 (relative) that count as a plateau."""
    give_up: int = Field(default=4000, ge=1)
    """Iterations without any gain after which the run ends."""
    goal: float = 1e-5
    """Total loss at which the run ends."""
    iterations: int = Field(default=20_000, ge=1)
    compiled: bool = False
    """True: kernels of the loop's own, by torch's compiler. Needs a C++ compiler and
    half a minute to some minutes before the run is fast; same values to rounding."""


@dataclass(frozen=True, eq=False)
class Descent:
    """How one run ended.

    Attributes:
        best: Copies of all unknowns at the smallest total loss.
        loss_start: Matching loss of the first iterate.
        loss_best: Matching loss of the best iterate.
        total_best: Its total loss.
        iterations: How many were made.
        end: Why it stopped.
        curve: (iteration, total loss) every few iterations.
        pictures: (iteration, first unknown) at growing distances, for the report.
        way: How the losses were computed at last.
        notes: What was done to it afterwards, for the reader.
        other: The first unknown as another answer has it; None: there is none.
    """

    best: list[Tensor]
    loss_start: float
    loss_best: float
    total_best: float
    iterations: int
    end: End
    curve: list[tuple[int, float]]
    pictures: list[tuple[int, Tensor]]
    way: Way = "plain"
    notes: tuple[str, ...] = ()
    other: Tensor | None = None


def minimise(
    objective: Callable[[], Objective],
    unknowns: Sequence[Unknown],
    *,
    schedule: Schedule,
    budget: Budget,
) -> Descent:
    """Minimise ``objective`` over ``unknowns``; the best iterate is returned.

    Ctrl-C ends the run and keeps what was found. A loss that is not finite ends it
    as "numerical", with the last good iterate.

    Args:
        objective: Computes the losses at the present values.
        unknowns: What is moved; every value a leaf that requires a gradient.
        schedule: Steps and when to stop.
        budget: Seconds and iterations at most.
    """
    limit = min(schedule.iterations, budget.iterations or schedule.iterations)
    deadline = None if budget.seconds is None else time.monotonic() + budget.seconds
    leaves = [v for u in unknowns for v in u.values]
    slopes = Slopes(objective, leaves, limit, deadline, schedule.compiled)
    run = _Run(slopes, unknowns, schedule)
    end: End = "iterations"
    try:
        while run.done < limit:
            run.step()
            late = deadline is not None and time.monotonic() > deadline
            if run.done % CHECK_EVERY and run.done < limit and not late:
                continue
            stop = run.check()
            tick(run.done, limit, run.curve[-1][1])
            if stop is None and late:
                stop = "seconds"
            if stop is not None:
                end = stop
                break
    except KeyboardInterrupt:
        end = "interrupted"
    return run.result(end)


@dataclass(eq=False)
class _Run:
    slopes: Slopes
    unknowns: Sequence[Unknown]
    schedule: Schedule
    done: int = 0
    pending: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    pictures: list[tuple[int, Tensor]] = field(default_factory=list)
    first_matching: float = float("nan")
    _looked: bool = False
    _since_best: int = 0
    _since_shrink: int = 0
    _best_seen: float = float("inf")
    _reference: float = float("inf")

    def __post_init__(self) -> None:
        self.leaves = self.slopes.leaves
        self.optimiser = _optimiser(self.leaves, self.schedule)
        self.best = [v.detach().clone() for v in self.leaves]
        device = self.leaves[0].device
        self.best_total = torch.tensor(float("inf"), device=device)
        self.best_matching = torch.tensor(float("nan"), device=device)

    def step(self) -> None:
        """One iteration: losses and gradient here, keep if best, then move."""
        self._picture()
        self._looked = False
        self.optimiser.step(self._look)
        with torch.no_grad():
            for unknown in self.unknowns:
                for value in unknown.values:
                    value.copy_(unknown.project(value))
        self.done += 1

    def _look(self) -> float:
        """Losses and gradient at the present values: L-BFGS asks several times."""
        moment = self.slopes()
        if self.slopes.broken:
            self.best_total.fill_(float("inf"))
            self._best_seen = self._reference = float("inf")
        self._keep(moment)
        steer(self.unknowns, moment)
        return moment.total  # type: ignore[return-value]  # read only if asked

    def _keep(self, moment: Moment) -> None:
        total, matching, _ = moment
        better = total < self.best_total
        # On a device the question is answered there: nobody waits for it.
        if better.device.type != "cpu" or better:
            # Losses may be in another precision than the values.
            self.best_total = torch.where(better, total, self.best_total)
            self.best_matching = torch.where(better, matching, self.best_matching)
            for kept, value in zip(self.best, self.leaves, strict=True):
                torch.where(better, value.detach(), kept, out=kept)
        if not self._looked:
            self.pending.append((total, matching))
        self._looked = True

    def _picture(self) -> None:
        """Iterates at 0, 10, 30, 100, 300 … for the strip in the report."""
        if self.done in MILESTONES and len(self.pictures) < _KEPT_PICTURES:
            self.pictures.append((self.done, self.leaves[0].detach().clone()))

    def check(self) -> End | None:
        """Look at the losses since the last look; steer, or say why to stop."""
        totals = torch.stack([t for t, _ in self.pending]).tolist()
        if self.first_matching != self.first_matching:
            self.first_matching = float(self.pending[0][1])
        self.pending.clear()
        self.curve.append((self.done, totals[-1]))
        for total in totals:
            if total != total:
                return "numerical"
            self._since_best = 0 if total < self._best_seen else self._since_best + 1
            self._best_seen = min(total, self._best_seen)
            gained = total < self._reference * (1 - GAIN)
            self._since_shrink = 0 if gained else self._since_shrink + 1
            self._reference = total if gained else self._reference
        if float(self.best_total) < self.schedule.goal:
            return "goal"
        if self._since_best >= self.schedule.give_up:
            return "plateau"
        if self._since_shrink >= self.schedule.patience:
            self._since_shrink = 0
            for group in self.optimiser.param_groups:
                group["lr"] *= self.schedule.shrink
        return None

    def result(self, end: End) -> Descent:
        return Descent(
            self.best,
            self.first_matching,
            float(self.best_matching),
            float(self.best_total),
            self.done,
            end,
            self.curve,
            self.pictures,
            self.slopes.way,
        )


def steer(unknowns: Sequence[Unknown], moment: Moment) -> None:
    """Give each unknown the gradient that the optimiser shall see."""
    by_leaf = iter(moment.gradients)
    for unknown in unknowns:
        for value in unknown.values:
            gradient = next(by_leaf)
            value.grad = gradient.sign() if unknown.sign else gradient


def adam(leaves: Sequence[Tensor], schedule: Schedule) -> torch.optim.Adam:
    """Adam, all of its arithmetic in one kernel where torch has that."""
    fused = all(v.device.type in ("cpu", "cuda") for v in leaves)
    rate, betas = schedule.learning_rate, schedule.betas
    return torch.optim.Adam(leaves, lr=rate, betas=betas, fused=fused)


def _optimiser(leaves: Sequence[Tensor], schedule: Schedule) -> torch.optim.Optimizer:
    if schedule.optimiser == "adam":
        return adam(leaves, schedule)
    rate = schedule.learning_rate
    # When to stop is decided above, whatever the scale of loss and gradient.
    return torch.optim.LBFGS(
        leaves,
        lr=rate,
        max_iter=schedule.evaluations,
        tolerance_grad=0,
        tolerance_change=0,
        history_size=schedule.history,
    )


MILESTONES = {0, 10, 30, 100, 300, 1000, 3000, 10_000}
