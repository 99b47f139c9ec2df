"""The one loop: best iterate, schedule, budget, Ctrl-C, numbers that break."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from privaudit._progress import Tick, watched_by
from privaudit.attacks._minimise import Descent, Objective, Schedule, Unknown, minimise
from privaudit.config import Budget


def valley(x: Tensor) -> Objective:
    loss = (x - 3).square().sum()
    return Objective(loss, loss)


def descend(
    schedule: Schedule, *, budget: Budget | None = None, start: float = 0.0
) -> tuple[Descent, Tensor]:
    x = torch.full((2,), start, requires_grad=True)
    found = minimise(
        lambda: valley(x),
        [Unknown([x], lambda v: v)],
        schedule=schedule,
        budget=budget or Budget(),
    )
    return found, x


def test_it_finds_the_minimum_and_stops_at_the_goal() -> None:
    found, _ = descend(Schedule(goal=1e-6))
    assert found.end == "goal"
    assert found.best[0].tolist() == pytest.approx([3, 3], abs=1e-2)
    assert found.loss_start == pytest.approx(18)
    assert found.loss_best < 1e-6


def curved(x: Tensor) -> Objective:
    """Ill conditioned: Adam would need hundreds of iterations."""
    loss = ((x - 3).square() * torch.tensor([1.0, 500.0])).sum()
    return Objective(loss, loss)


def test_lbfgs_is_a_setting_of_the_schedule() -> None:
    x = torch.zeros(2, requires_grad=True)
    found = minimise(
        lambda: curved(x),
        [Unknown([x], lambda v: v)],
        schedule=Schedule(optimiser="lbfgs", learning_rate=1.0, goal=1e-9),
        budget=Budget(),
    )
    assert found.end == "goal"
    assert found.iterations <= 10
    assert found.best[0].tolist() == pytest.approx([3, 3], abs=1e-3)
    assert found.loss_start == pytest.approx(9 + 9 * 500)


def test_lbfgs_keeps_the_best_of_all_its_evaluations_and_counts_iterations() -> None:
    losses: list[float] = []
    x = torch.zeros(2, requires_grad=True)

    def objective() -> Objective:
        loss = curved(x)
        losses.append(float(loss.total.detach()))
        return loss

    found = minimise(
        objective,
        [Unknown([x], lambda v: v)],
        schedule=Schedule(optimiser="lbfgs", learning_rate=1.3, evaluations=7, goal=-1),
        budget=Budget(iterations=2),
    )
    assert found.iterations == 2
    assert len(losses) == 14
    assert found.total_best == min(losses)
    assert float(curved(found.best[0]).total) == min(losses)
    assert found.loss_start == losses[0]


def test_the_best_iterate_is_returned_not_the_last() -> None:
    losses = iter([5.0, 1.0, 4.0, 3.0])
    x = torch.zeros(1, requires_grad=True)
    seen: list[float] = []

    def objective() -> Objective:
        seen.append(float(x.detach()))
        loss = next(losses) + 0 * x.sum() + (x - x.detach()).sum()
        return Objective(loss, loss)

    found = minimise(
        objective,
        [Unknown([x], lambda v: v)],
        schedule=Schedule(iterations=4),
        budget=Budget(),
    )
    assert found.total_best == 1.0
    assert float(found.best[0]) == pytest.approx(seen[1])
    assert seen[1] != seen[3]


def test_a_plateau_shrinks_the_steps_and_then_ends_the_run() -> None:
    rates: list[float] = []
    x = torch.zeros(1, requires_grad=True)

    def objective() -> Objective:
        loss = 1.0 + (x - x.detach()).sum()  # slopes for ever, never gets better
        rates.append(float(x.detach()))
        return Objective(loss, loss)

    found = minimise(
        objective,
        [Unknown([x], lambda v: v)],
        schedule=Schedule(patience=20, give_up=60, iterations=500),
        budget=Budget(),
    )
    steps = [abs(a - b) for a, b in zip(rates[1:], rates, strict=False)]
    assert found.end == "plateau"
    assert found.iterations < 100
    assert steps[0] == pytest.approx(0.1, rel=1e-3)
    assert min(steps) < 0.011


@pytest.mark.parametrize(("given", "made"), [(Budget(iterations=7), 7), (Budget(), 30)])
def test_iterations_are_capped(given: Budget, made: int) -> None:
    found, _ = descend(Schedule(iterations=30, goal=0), budget=given)
    assert found.iterations == made
    assert found.end == "iterations"


def test_time_ends_a_run_and_keeps_what_was_found() -> None:
    found, _ = descend(Schedule(goal=0), budget=Budget(seconds=1e-6))
    assert found.end == "seconds"
    assert found.iterations == 1
    assert found.best[0].tolist() == [0, 0]


def test_projection_holds_after_every_step() -> None:
    x = torch.zeros(2, requires_grad=True)
    found = minimise(
        lambda: valley(x),
        [Unknown([x], lambda v: v.clamp(0, 1), sign=True)],
        schedule=Schedule(iterations=50),
        budget=Budget(),
    )
    assert found.best[0].tolist() == pytest.approx([1, 1])
    assert float(found.best[0].max()) <= 1


def test_the_sign_only_unknown_moves_all_entries_alike() -> None:
    x = torch.tensor([0.0, 2.9], requires_grad=True)
    minimise(
        lambda: valley(x),
        [Unknown([x], lambda v: v, sign=True)],
        schedule=Schedule(iterations=1),
        budget=Budget(),
    )
    assert x.tolist() == pytest.approx([0.1, 3.0], abs=1e-5)


def test_ctrl_c_keeps_what_was_found() -> None:
    x = torch.zeros(2, requires_grad=True)
    calls = 0

    def objective() -> Objective:
        nonlocal calls
        calls += 1
        if calls == 25:
            raise KeyboardInterrupt
        return valley(x)

    found = minimise(
        objective, [Unknown([x], lambda v: v)], schedule=Schedule(), budget=Budget()
    )
    assert found.end == "interrupted"
    assert found.iterations == 24
    assert found.total_best < 18


def test_a_loss_that_breaks_ends_the_run_with_the_last_good_iterate() -> None:
    x = torch.zeros(1, requires_grad=True)
    calls = 0

    def objective() -> Objective:
        nonlocal calls
        calls += 1
        loss = (x - 3).square().sum() * (float("nan") if calls > 5 else 1.0)
        return Objective(loss, loss)

    found = minimise(
        objective, [Unknown([x], lambda v: v)], schedule=Schedule(), budget=Budget()
    )
    assert found.end == "numerical"
    assert found.best[0].isfinite().all()
    assert found.total_best < 9


def test_pictures_are_kept_at_growing_distances() -> None:
    found, _ = descend(Schedule(iterations=400, goal=0))
    assert [i for i, _ in found.pictures] == [0, 10, 30, 100, 300]
    assert found.pictures[0][1].tolist() == [0, 0]


def test_whoever_watches_is_told() -> None:
    ticks: list[Tick] = []
    with watched_by(ticks.append):
        descend(Schedule(iterations=30, goal=0))
    assert [t.done for t in ticks] == [10, 20, 30]
    assert ticks[0].total == 30
    assert ticks[-1].loss < ticks[0].loss
