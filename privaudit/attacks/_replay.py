"""The losses of an iteration and their gradient, written down once and replayed.

Every iteration of gradient matching runs the same operators. Autograd finds them anew
each time, through the model's modules and both backward passes, and for small models
that costs more than the operators do. So they are traced once, derivatives included,
and from then on run as they stand: the same kernels on the same values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from privaudit.attacks._graph import refusal, simplify

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from privaudit.attacks._minimise import Objective

Way = Literal["plain", "replayed", "compiled"]

START = 50
"""Iterations before tracing, which takes as long as about a hundred of them."""
WORTH = 500
"""Iterations that must be left for it."""
CHECKS = frozenset({1, 10, 100, 1000, 10_000})
"""Replays that are held against a plain iteration."""
FIRST, LATER = 1e-3, 5e-2
"""How far those two may be apart, relative. Near the goal the loss is a difference of
nearly equal numbers: correct float32 gradients differ by a thousandth and more."""
ROUNDING = 1e-6
"""Of a loss in float32, whatever its size."""


class Moment(NamedTuple):
    """One iteration's losses, without a graph, and the gradient of the total."""

    total: Tensor
    matching: Tensor
    gradients: tuple[Tensor, ...]


@dataclass(eq=False)
class Slopes:
    """Losses and gradient at the present values of ``leaves``.

    A model that decides by values, draws at random or writes to what it was given is
    not replayed. What is replayed is held against a plain iteration now and then; where
    the two differ it is given up, and ``broken`` says that earlier losses are in doubt.

    Attributes:
        objective: Computes the losses; several victims' have one entry each.
        leaves: What to differentiate by; changed in place between the calls.
        iterations: How many there will be at most.
        deadline: Of ``time.monotonic``; None: there is none.
        compiled: True hands the operators to torch's compiler.
        way: How the latest moment was computed.
        refused: Why nothing is replayed; empty: it is, or was not tried.
        broken: The latest check failed.
    """

    objective: Callable[[], Objective]
    leaves: Sequence[Tensor]
    iterations: int
    deadline: float | None = None
    compiled: bool = False
    way: Way = "plain"
    refused: str = ""
    broken: bool = False
    _calls: int = 0
    _started: float = 0.0
    _replays: int = 0
    _run: Callable[..., Any] | None = None

    def __call__(self) -> Moment:
        """The moment here."""
        self.broken = False
        self._calls += 1
        if self._run is not None:
            return self._replayed(self._run)
        if self._calls == 1:
            self._started = time.monotonic()
        if self._calls == START and self._left() >= WORTH:
            return self._traced()
        return self._plain()

    def _left(self) -> float:
        """How many iterations will still be made, as things go."""
        left = float(self.iterations - self._calls)
        if self.deadline is None:
            return left
        now = time.monotonic()
        each = (now - self._started) / self._calls
        return min(left, (self.deadline - now) / each)

    def _plain(self) -> Moment:
        with torch.enable_grad():
            losses = self.objective()
            found = torch.autograd.grad(losses.total.sum(), self.leaves)
        return Moment(losses.total.detach(), losses.matching.detach(), found)

    def _flat(self, *_: Tensor) -> tuple[Tensor, ...]:
        total, matching, gradients = self._plain()
        return total, matching, *gradients

    def _traced(self) -> Moment:
        from torch.fx.experimental.proxy_tensor import make_fx

        try:
            graph = make_fx(self._flat)(*self.leaves)
            self.refused = refusal(graph)
            if not self.refused:
                simplify(graph)
                self._run, self.way = self._runnable(graph)
        except Exception as error:  # noqa: BLE001
            # Whatever stands in the way of a trace does not stand in that of the run.
            self.refused = f"{type(error).__name__}: {error}"
        return self._plain()

    def _runnable(self, graph: GraphModule) -> tuple[Callable[..., Any], Way]:
        if self.compiled:
            try:
                return _compile(graph, self.leaves), "compiled"
            except Exception as error:  # noqa: BLE001  no compiler, or it is at a loss
                self.refused = f"not compiled: {error}"
        return graph, "replayed"

    def _replayed(self, run: Callable[..., Any]) -> Moment:
        with torch.no_grad():
            total, matching, *gradients = run(*self.leaves)
        moment = Moment(total, matching, tuple(gradients))
        self._replays += 1
        if self._replays not in CHECKS:
            return moment
        plain = self._plain()
        if _differ(moment, plain, FIRST if self._replays == 1 else LATER):
            self._run, self.way, self.broken = None, "plain", True
            self.refused = "a replayed iteration differed from a plain one"
        return plain


def _compile(graph: GraphModule, leaves: Sequence[Tensor]) -> Callable[..., Any]:
    """Kernels for a copy of ``graph``: element-wise operators run together."""
    import copy

    from torch._inductor import compile as to_kernels
    from torch.fx import GraphModule

    own = GraphModule(graph, copy.deepcopy(graph.graph))
    with torch.no_grad():
        run: Callable[..., Any] = to_kernels(own, list(leaves))
        run(*leaves)
    return run


def _differ(one: Moment, other: Moment, tolerance: float) -> bool:
    """True where losses or gradients are too far apart; NaN is like NaN."""
    a, b = one.total, other.total
    near = torch.isclose(a, b, rtol=tolerance, atol=ROUNDING, equal_nan=True)
    if not bool(near.all()):
        return True
    gap = size = 0.0
    for mine, theirs in zip(one.gradients, other.gradients, strict=True):
        gap += float((mine - theirs).square().sum())
        size += float(theirs.square().sum())
    # A gradient that is not finite in both is left to the loss, which will follow.
    return size == size and not gap <= tolerance**2 * size
