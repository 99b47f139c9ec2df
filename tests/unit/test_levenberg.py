"""Damped Gauss-Newton steps, on problems whose answer is known."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from privaudit.attacks._levenberg import Effort, Tangent, least_squares


def rosenbrock(unknowns: Sequence[Tensor]) -> Tensor:
    """Zero at (1, 1), at the end of a bent valley."""
    x, y = unknowns[0][0], unknowns[1][0]
    return torch.stack([10 * (y - x * x), 1 - x])


def effort(steps: int = 100, deadline: float | None = None) -> Effort:
    return Effort(steps, products=50, work=10_000, deadline=deadline)


def test_both_derivatives_are_those_of_the_function() -> None:
    torch.manual_seed(0)
    mix = torch.randn(7, 5, dtype=torch.double)

    def function(unknowns: Sequence[Tensor]) -> Tensor:
        return torch.tanh(mix @ torch.cat([unknowns[0], unknowns[1].flatten()]))

    place = [torch.randn(3, dtype=torch.double), torch.randn(1, 2, dtype=torch.double)]
    tangent = Tangent(function, place)
    flat = torch.cat([p.flatten() for p in place])
    jacobian = (1 - torch.tanh(mix @ flat).square())[:, None] * mix
    along, weights = torch.randn(5).double(), torch.randn(7).double()
    assert torch.allclose(tangent.forward(along), jacobian @ along)
    assert torch.allclose(tangent.backward(weights), jacobian.T @ weights)


def test_an_unknown_that_changes_nothing_has_no_derivative() -> None:
    tangent = Tangent(lambda u: 2 * u[0], [torch.ones(2), torch.ones(3)])
    assert tangent.forward(torch.ones(5)).tolist() == [2, 2]
    assert tangent.backward(torch.ones(2)).tolist() == [2, 2, 0, 0, 0]
    still = Tangent(lambda u: torch.ones(2) + 0 * u[0].sum(), [torch.ones(3)])
    assert still.forward(torch.ones(3)).tolist() == [0, 0]


def test_a_bent_valley_is_followed_to_its_end() -> None:
    start = [torch.tensor([-1.25]).double(), torch.tensor([1.0]).double()]
    found = least_squares(rosenbrock, start, [None, None], goal=1e-20, effort=effort())
    assert found.end == "goal"
    assert [float(v) for v in found.best] == pytest.approx([1, 1], abs=1e-8)
    losses = [loss for _, loss in found.curve]
    assert losses == sorted(losses, reverse=True)
    assert found.loss_start == losses[0]
    assert found.loss_best == losses[-1]
    assert start[0].tolist() == [-1.25], "the caller's own values moved"


def test_what_is_held_does_not_move() -> None:
    values = [torch.tensor([0.5, 3.0]), torch.tensor([0.0])]
    held = [torch.tensor([False, True]), None]
    found = least_squares(rosenbrock, values, held, goal=1e-12, effort=effort())
    assert found.best[0][1] == 3.0
    assert float(found.best[0][0]) == pytest.approx(1, abs=1e-4)


def test_where_no_step_helps_it_ends() -> None:
    found = least_squares(
        lambda u: 1 + u[0].square(), [torch.zeros(3)], [None], goal=0.0,
        effort=effort(),
    )  # fmt: skip
    assert found.end == "plateau"
    assert found.loss_best == pytest.approx(3)


def test_a_kink_is_told_from_a_bend() -> None:
    """Its slope promises more than any step keeps."""
    bent = [torch.tensor([0.3]), torch.tensor([2.0])]
    smooth = least_squares(rosenbrock, bent, [None, None], goal=0.0, effort=effort())
    assert not smooth.kinked
    sharp = least_squares(
        lambda u: torch.stack([1 + u[0].abs().sum(), 0.1 * (u[0] - 3).sum()]),
        [torch.full((1,), 0.5)], [None], goal=0.0, effort=effort(),
    )  # fmt: skip
    assert sharp.kinked
    assert sharp.loss_best < sharp.loss_start


def test_time_work_and_steps_bound_it() -> None:
    start = [torch.tensor([-1.2]), torch.tensor([1.0])]
    late = least_squares(
        rosenbrock, start, [None, None], goal=0.0,
        effort=effort(deadline=time.monotonic() - 1),
    )  # fmt: skip
    assert late.end == "seconds"
    short = least_squares(rosenbrock, start, [None, None], goal=0.0, effort=effort(2))
    assert (short.end, short.iterations) == ("iterations", 2)
    few = Effort(100, products=50, work=3)
    cheap = least_squares(rosenbrock, start, [None, None], goal=0.0, effort=few)
    assert cheap.end == "iterations"
    assert cheap.iterations <= 3


def test_a_function_that_is_not_finite_ends_it() -> None:
    found = least_squares(
        lambda u: u[0].log(), [-torch.ones(2)], [None], goal=0.0, effort=effort()
    )
    assert found.end == "numerical"


def test_what_was_found_survives_an_interruption() -> None:
    calls = 0

    def interrupted(unknowns: Sequence[Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise KeyboardInterrupt
        return rosenbrock(unknowns)

    start = [torch.tensor([-1.2]), torch.tensor([1.0])]
    found = least_squares(interrupted, start, [None, None], goal=0.0, effort=effort())
    assert found.end == "interrupted"
    assert found.loss_best < found.loss_start
