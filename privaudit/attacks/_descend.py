"""The loop of attacks on features: many rows at once, each as if it were alone.

It differs from the loop of gradient matching in what those attacks need: the image is
decoded from the unknowns, parts of the loss change their weight as the run proceeds,
and each row's gradient is clipped by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from privaudit._progress import tick
from privaudit.attacks._feature_loss import (
    FeatureLoss,
    Parts,
    folded_products,
)
from privaudit.attacks._minimise import CHECK_EVERY, GAIN, MILESTONES
from privaudit.config import Budget

End = Literal["plateau", "iterations", "budget", "seconds", "numerical", "interrupted"]


class Guess(Protocol):
    """The images of some rows, as a function of what is optimised."""

    @property
    def leaves(self) -> Sequence[Tensor]:
        """Leaf tensors, changed in place; rows lead."""

    def images(self, progress: float) -> Tensor:
        """(rows, C, H, W), [0, 1] being black to white, with its graph.

        Args:
            progress: How much of the run is over, from 0 to 1.
        """


@dataclass(frozen=True, kw_only=True)
class Course:
    """Steps of one run, and how the weights of the loss change.

    Attributes:
        learning_rate: Of Adam.
        iterations: At most.
        smooth: λ of the total variation at the start.
        smooth_end: λ at the end; on the way it falls geometrically.
        seams: λ of the patch boundaries.
        clip: Largest norm of one row's gradient; None: any.
        give_up: Iterations without a gain after which a row ends.
        cool: Share of the run, at its end, over which steps shrink to nothing.
    """

    learning_rate: float
    iterations: int
    smooth: float
    smooth_end: float
    seams: float
    clip: float | None = None
    give_up: int = 20_000
    cool: float = 0.0

    def smooth_at(self, progress: float) -> float:
        """λ of the total variation when ``progress`` of the run is over."""
        if self.smooth == self.smooth_end or not self.smooth:
            return self.smooth
        floor = max(self.smooth_end, 1e-4 * self.smooth)
        return float(self.smooth * (floor / self.smooth) ** progress)

    def rate_at(self, progress: float) -> float:
        """Adam's step when ``progress`` of the run is over."""
        if not self.cool:
            return self.learning_rate
        return self.learning_rate * min(1.0, max(1 - progress, 0.01) / self.cool)


@dataclass(frozen=True, eq=False)
class Row:
    """How the search of one row ended.

    Attributes:
        image: (1, C, H, W) in [0, 1], the best iterate.
        value: Its loss under the weights that hold at the end; inf: none was finite.
        loss_start: Matching loss of the first iterate.
        loss_final: Matching loss of ``image`` itself.
        iterations: How many were made.
        end: Why it stopped.
        curve: (iteration, loss) every few iterations.
        pictures: (iteration, (C, H, W) in [0, 1]) at growing distances.
    """

    image: Tensor
    value: float
    loss_start: float
    loss_final: float
    iterations: int
    end: End
    curve: list[tuple[int, float]]
    pictures: list[tuple[int, Tensor]]


def descend(
    guess: Guess, loss: FeatureLoss, course: Course, budget: Budget
) -> list[Row]:
    """Minimise the loss of every row; what one gets does not depend on the others.

    Ctrl-C ends the run and keeps what was found. A loss that is not finite ends its
    row alone.

    Args:
        guess: How images hang on what is optimised.
        loss: Of each row.
        course: Steps and weights.
        budget: Seconds and iterations at most.
    """
    run = _Run(guess, loss, course, budget)
    rest: End = "iterations" if run.limit == course.iterations else "budget"
    with folded_products(loss.target.model):
        try:
            while run.done < run.limit:
                run.step()
                late = run.is_late()
                if run.done % CHECK_EVERY and run.done < run.limit and not late:
                    continue
                if run.check():
                    break
                if late:
                    rest = "seconds"
                    break
        except KeyboardInterrupt:
            rest = "interrupted"
        return run.rows(rest)


@dataclass(eq=False)
class _State:
    """Where the search of one row stands."""

    end: End | None = None
    iterations: int = 0
    since_gain: int = 0
    reference: float = float("inf")
    curve: list[tuple[int, float]] = field(default_factory=list)

    def see(self, value: float, give_up: int) -> None:
        """One more loss; ends the row where it is not finite or no longer falls."""
        if self.end is not None:
            return
        self.iterations += 1
        if not abs(value) < float("inf"):
            self.end = "numerical"
            return
        gained = value < self.reference - GAIN * abs(self.reference)
        self.since_gain = 0 if gained or self.iterations == 1 else self.since_gain + 1
        if self.since_gain == 0:
            self.reference = value
        if self.since_gain >= give_up:
            self.end = "plateau"


@dataclass(eq=False)
class _Run:
    guess: Guess
    loss: FeatureLoss
    course: Course
    budget: Budget
    done: int = 0
    pending: list[Tensor] = field(default_factory=list)
    pictures: list[tuple[int, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        course, capped = self.course, self.budget.iterations
        self.limit = min(course.iterations, capped or course.iterations)
        self.started = time.monotonic()
        self.leaves = list(self.guess.leaves)
        self.optimiser = torch.optim.Adam(self.leaves, lr=course.learning_rate)
        rows = len(self.loss.observed)
        self.best_value = self.loss.observed.new_full((rows,), float("inf"))
        self.first = self.best_value.new_full((rows,), float("nan"))
        with torch.no_grad():
            self.best = self.guess.images(0.0).detach().clone()
        self.states = [_State() for _ in range(rows)]
        self.moving: Tensor | None = None

    @property
    def progress(self) -> float:
        """How much of the run is over: of its iterations, or of its seconds."""
        spent = self.done / self.limit
        if self.budget.seconds is not None:
            gone = time.monotonic() - self.started
            spent = max(spent, gone / self.budget.seconds)
        return min(spent, 1.0)

    def is_late(self) -> bool:
        """True once the seconds are over."""
        seconds = self.budget.seconds
        return seconds is not None and time.monotonic() - self.started > seconds

    def step(self) -> None:
        """One iteration: loss and gradient here, keep what is best, then move."""
        progress = self.progress
        images = self.guess.images(progress)
        parts = self.loss.parts(images)
        total = self._total(parts, self.course.smooth_at(progress))
        gradients = torch.autograd.grad(total.sum(), self.leaves)
        self._keep(images.detach(), parts)
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = self._clipped(gradient)
        self.optimiser.param_groups[0]["lr"] = self.course.rate_at(progress)
        before = (
            None if self.moving is None else [v.detach().clone() for v in self.leaves]
        )
        self.optimiser.step()
        if before is not None:
            self._hold(before)
        self.done += 1

    def _total(self, parts: Parts, smooth: float) -> Tensor:
        return parts.matching + smooth * parts.smooth + self.course.seams * parts.seams

    def _clipped(self, gradient: Tensor) -> Tensor:
        if self.course.clip is None:
            return gradient
        norms = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
        factor = (self.course.clip / (norms + 1e-6)).clamp(max=1)
        return gradient * _spread(factor, gradient)

    def _hold(self, before: Sequence[Tensor]) -> None:
        """Rows that have ended stay where they were."""
        with torch.no_grad():
            for leaf, old in zip(self.leaves, before, strict=True):
                leaf.copy_(torch.where(_spread(self._moving(), leaf), leaf, old))

    def _moving(self) -> Tensor:
        if self.moving is None:
            return torch.ones_like(self.best_value, dtype=torch.bool)
        return self.moving

    def _keep(self, images: Tensor, parts: Parts) -> None:
        """Judge by the weights of the end: on the way they change, and losses too."""
        value = self._total(parts, self.course.smooth_at(1.0)).detach()
        if self.done == 0:
            self.first = parts.matching.detach().clone()
        better = (value < self.best_value) & self._moving()
        self.best_value = torch.where(better, value, self.best_value)
        self.best = torch.where(_spread(better, images), images, self.best)
        if self.done in MILESTONES:
            self.pictures.append((self.done, images.clamp(0, 1).cpu()))
        self.pending.append(value)

    def check(self) -> bool:
        """Look at the losses since the last look; True once every row has ended."""
        seen = torch.stack(self.pending).tolist()
        self.pending.clear()
        for index, state in enumerate(self.states):
            for values in seen:
                state.see(values[index], self.course.give_up)
            if state.end is None or not state.curve:
                state.curve.append((self.done, seen[-1][index]))
        tick(self.done, self.limit, sum(seen[-1]) / len(seen[-1]))
        going = [s.end is None for s in self.states]
        if not all(going):
            self.moving = torch.tensor(going, device=self.best_value.device)
        return not any(going)

    def rows(self, rest: End) -> list[Row]:
        """How each row ended; ``rest`` for those that were still going."""
        images = self.best.clamp(0, 1).nan_to_num(0.5)
        with torch.no_grad():
            finals = self.loss.matching(images).tolist()
        return [
            Row(
                images[i : i + 1].float().clone(),
                float(self.best_value[i]),
                float(self.first[i]),
                finals[i],
                state.iterations or self.done,
                state.end or rest,
                state.curve,
                [(at, batch[i].clone()) for at, batch in self.pictures],
            )
            for i, state in enumerate(self.states)
        ]


def _spread(per_row: Tensor, like: Tensor) -> Tensor:
    """``per_row`` in a shape that broadcasts over ``like``."""
    return per_row.view(-1, *[1] * (like.dim() - 1))
