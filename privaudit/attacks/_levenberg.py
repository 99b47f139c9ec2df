"""Nonlinear least squares: damped Gauss-Newton steps by conjugate gradients.

Nothing is materialised. A function is seen through its derivative in both directions,
the forward one as the derivative of the backward one, so that any model will do whose
gradient autograd can differentiate twice more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privaudit._autograd import partials
from privaudit._progress import tick
from privaudit.attacks._linear_krylov import conjugate
from privaudit.attacks._minimise import MILESTONES, Descent, End

Residual = Callable[[Sequence[Tensor]], Tensor]

_DAMPING, _SOFTEST = 1e-2, 1e-14
"""Share of the mean curvature that is added: at first, at least."""
_SOFTER, _HARDER = 0.1, 8.0
_AS_HOPED, _BADLY = 0.75, 0.25
"""Share of the gain a step promised: above and below, the damping is changed."""
_STIFF = 1e2
"""Damping beyond which no step of a smooth function would fail: there is a kink."""
_FEW = 300
"""Steps of conjugate gradients at first."""
_CLOSE = 0.3
"""A linear system is solved to this share of how well the step itself can be."""
_GAIN, _PATIENCE = 1e-2, 3
"""So many steps in a row that gain less than that share end it."""
_SEED = 0


@dataclass(frozen=True, eq=False)
class Effort:
    """What may be spent.

    Attributes:
        steps: Tangents at most.
        products: Steps of conjugate gradients for one tangent at most.
        work: Of them for all tangents together.
        deadline: Of ``time.monotonic``; None: no bound.
        stiffest: Damping beyond which it ends, as if at a kink.
    """

    steps: int
    products: int
    work: int
    deadline: float | None = None
    stiffest: float = _STIFF

    def in_time(self) -> bool:
        """True while the deadline has not passed."""
        return self.deadline is None or time.monotonic() < self.deadline


class Tangent:
    """A function and its derivative at one place.

    Attributes:
        value: Of the function, float64, no graph.
    """

    def __init__(self, residual: Residual, unknowns: Sequence[Tensor]) -> None:
        self._leaves = [u.detach().clone().requires_grad_() for u in unknowns]
        with torch.enable_grad():
            self._made = residual(self._leaves)
            self._weights = torch.zeros_like(self._made, requires_grad=True)
            pulled = partials(
                self._made, self._leaves, self._weights, create_graph=True
            )
            self._pulled = self._joined(pulled)
        self.value = self._made.detach().double()

    def backward(self, weights: Tensor) -> Tensor:
        """Transposed derivative: ``weights`` (as the value) to the unknowns."""
        found = partials(self._made, self._leaves, weights.to(self._made))
        return self._joined(found).double()

    def forward(self, direction: Tensor) -> Tensor:
        """Derivative along ``direction``, (unknowns,), as the value."""
        if not self._pulled.requires_grad:
            return torch.zeros_like(self.value)
        (found,) = partials(self._pulled, [self._weights], direction.to(self._pulled))
        return torch.zeros_like(self.value) if found is None else found.double()

    def _joined(self, parts: Sequence[Tensor | None]) -> Tensor:
        return torch.cat(
            [
                torch.zeros_like(leaf).flatten() if part is None else part.flatten()
                for part, leaf in zip(parts, self._leaves, strict=True)
            ]
        )


def least_squares(
    residual: Residual,
    start: Sequence[Tensor],
    held: Sequence[Tensor | None],
    *,
    goal: float,
    effort: Effort,
) -> Walked:
    """Minimise ``‖residual‖²``, by steps that never make it larger.

    Nothing is kept in a range: where the equations determine the unknowns they end in
    it by themselves, and a range in the way of a step is where searches get stuck
    (measured on digits, most of whose pixels are at its end).

    Args:
        residual: (equations,), with its graph, of the unknowns in their shapes.
        start: Where the unknowns begin.
        held: Per unknown which entries must not move; None: none.
        goal: Squared norm at which it ends.
        effort: Steps and time.

    Source: Levenberg 1944, Marquardt 1963; inexact steps as Dembo 1982.
    """
    walk = _Walk(residual, [u.detach().clone() for u in start], held, effort)
    end: End = "iterations"
    try:
        for done in range(effort.steps):
            walk.picture(done)
            stop = walk.step()
            tick(done + 1, effort.steps, walk.loss)
            if walk.loss <= goal:
                stop = "goal"
            if stop is not None:
                end = stop
                break
    except KeyboardInterrupt:
        end = "interrupted"
    return walk.result(end)


@dataclass(frozen=True, eq=False)
class Walked(Descent):
    """How it ended.

    Attributes:
        products: Steps of conjugate gradients that it took.
        kinked: It ended where even short steps do not keep what the slope promises.
    """

    products: int = 0
    kinked: bool = False


@dataclass(eq=False)
class _Walk:
    residual: Residual
    values: list[Tensor]
    held: Sequence[Tensor | None]
    effort: Effort
    loss: float = float("inf")
    done: int = 0
    kinked: bool = False
    curve: list[tuple[int, float]] = field(default_factory=list)
    pictures: list[tuple[int, Tensor]] = field(default_factory=list)
    _damping: float = _DAMPING
    _few: int = _FEW
    _idle: int = 0
    _spent: int = 0

    def __post_init__(self) -> None:
        self._free = self._flat(
            [
                torch.ones_like(v) if h is None else (~h).to(v)
                for v, h in zip(self.values, self.held, strict=True)
            ]
        )
        self._few = min(_FEW, self.effort.products)

    def picture(self, number: int) -> None:
        """Keep the first unknown at growing distances, for the report."""
        if number in MILESTONES:
            self.pictures.append((number, self.values[0].clone()))

    def step(self) -> End | None:
        """One tangent and the way to its least squares; or why there is none."""
        tangent = Tangent(self.residual, self.values)
        before = float(tangent.value.square().sum())
        if before != before:
            return "numerical"
        if not self.curve:
            self.curve.append((0, before))
        self.loss = before
        pull = -self._free * tangent.backward(tangent.value)
        stiffness = _stiffness(tangent, self._free)
        here = self._flat(self.values)
        while self._damping < self.effort.stiffest:
            before_it = self._spent
            change = self._change(tangent, pull, stiffness)
            capped = self._spent - before_it >= self._few
            if not self.effort.in_time():
                return "seconds"
            moved = self._shaped(here + change)
            with torch.enable_grad():
                now = float(self.residual(moved).detach().double().square().sum())
            if now < before:
                promised = float(change @ pull)
                self._few = self._few_after(capped=capped, better=now < before / 2)
                self._accept(moved, now)
                self._judge((before - now) / max(promised, 1e-30))
                self._idle = self._idle + 1 if now > before * (1 - _GAIN) else 0
                if self._idle >= _PATIENCE:
                    return "plateau"
                return "iterations" if self._spent >= self.effort.work else None
            if self._spent >= self.effort.work:
                return "iterations"
            self._damping *= _HARDER
        self.kinked = True
        return "plateau"

    def _accept(self, moved: list[Tensor], now: float) -> None:
        self.values, self.loss = moved, now
        self.done += 1
        self.curve.append((self.done, now))

    def _few_after(self, *, capped: bool, better: bool) -> int:
        """More steps for the next system where this one wanted them, and it paid."""
        if capped and better:
            return min(2 * self._few, self.effort.products)
        return self._few

    def _judge(self, kept: float) -> None:
        """Trust the tangent more, or less, by what it kept of its promise."""
        if kept > _AS_HOPED:
            self._damping = max(self._damping * _SOFTER, _SOFTEST)
        elif kept < _BADLY:
            self._damping *= _HARDER

    def _change(self, tangent: Tangent, pull: Tensor, stiffness: float) -> Tensor:
        """The damped step."""

        def curve(direction: Tensor) -> Tensor:
            self._spent += 1
            bent = tangent.backward(tangent.forward(direction[0]))
            return (self._free * bent)[None] + self._damping * stiffness * direction

        enough = _CLOSE * min(0.1, self.loss**0.5)
        found = conjugate(
            curve, pull[None], steps=self._few, enough=enough,
            go_on=self.effort.in_time,
        )  # fmt: skip
        return found[0]

    def _flat(self, values: Sequence[Tensor]) -> Tensor:
        return torch.cat([v.flatten() for v in values]).double()

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [v.numel() for v in self.values])
        return [p.view_as(v).to(v) for p, v in zip(parts, self.values, strict=True)]

    def result(self, end: End) -> Walked:
        """As the loop of the other attacks says it."""
        start = self.curve[0][1] if self.curve else float("nan")
        best = self.curve[-1][1] if self.curve else float("inf")
        return Walked(
            self.values, start, best, best, self.done, end, self.curve, self.pictures,
            products=self._spent, kinked=self.kinked,
        )  # fmt: skip


def _stiffness(tangent: Tangent, free: Tensor) -> float:
    """Mean curvature of an unknown. Source: Hutchinson 1989, one draw."""
    generator = torch.Generator().manual_seed(_SEED)
    signs = 2.0 * torch.randint(2, free.shape, generator=generator).to(free) - 1
    moved = tangent.forward(signs * free)
    return float(moved.square().sum() / free.sum().clamp_min(1))
