"""Gauss-Newton steps after a search: they help, they know when not to, and say so."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Budget, Client
from privaudit._nearer import NOTE, nearer
from privaudit._pixels import Normalisation
from privaudit.attacks import DropoutInversion, GaussNewton
from privaudit.attacks import _refine as refining
from privaudit.attacks._kinks import has_kinks
from privaudit.attacks._matching import Matching
from privaudit.attacks._minimise import Descent, Schedule
from privaudit.attacks.base import INTERRUPTED
from privaudit.distances import Cosine
from privaudit.exposure import GradientExposure
from privaudit.metrics import Ssim
from privaudit.types import (
    AttackerKnowledge,
    Batch,
    Observation,
    Reconstruction,
    Target,
)
from tests.models.dia import lenet
from tests.unit.test_dropout_inversion import MEAN, STD, photographs
from tests.unit.test_gauss_newton import SIDE, smooth_cnn

SHORT = Schedule(iterations=150)


def scene(
    model: nn.Module, *, count: int = 1, noise: float = 0.0, start: int = 0
) -> tuple[Target, Observation, Batch]:
    batch = Batch(photographs(count, SIDE), torch.arange(count) + 3)
    exposure = GradientExposure(Normalisation(MEAN, STD))
    observation = exposure.observe(model, batch, seed=start).observation
    target = Target(model, exposure, AttackerKnowledge(batch.labels), noise_share=noise)
    return target, observation, batch


def found_by(
    attack: DropoutInversion,
    target: Target,
    observation: Observation,
    budget: Budget | None = None,
) -> Reconstruction:
    # A memory of its own: what is read there would draw from the generator only once.
    return attack.run(
        replace(target, memory={}), observation, budget=budget or Budget(),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def ssim(found: Reconstruction, batch: Batch) -> float:
    assert found.images is not None
    values = [s.value for s in Ssim().score(batch.images, found.images)]
    return min(v for v in values if v is not None)


def dropped() -> nn.Module:
    """Its masks do not show in the gradient."""
    return smooth_cnn(nn.Dropout(0.25))


def relu_cnn(p: float = 0.25) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Dropout(p),
        nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(200, 10),
    )  # fmt: skip


def test_it_gets_nearer_to_image_and_gradient_and_says_so() -> None:
    target, observation, batch = scene(dropped())
    plain = found_by(DropoutInversion(schedule=SHORT), target, observation)
    better = found_by(DropoutInversion(schedule=SHORT, refine=4), target, observation)
    assert plain.search is not None
    assert better.search is not None
    assert better.search.loss_final < plain.search.loss_final / 10
    assert ssim(better, batch) > ssim(plain, batch) + 0.1
    assert better.search.iterations > plain.search.iterations
    assert any("Gauss-Newton" in n for n in better.notes)
    assert not plain.notes


@pytest.mark.parametrize(("most", "steps"), [(60, 0), (749, 0), (1350, 2)])
def test_a_cap_on_iterations_holds_for_both(most: int, steps: int) -> None:
    target, observation, _ = scene(dropped())
    found = found_by(
        DropoutInversion(schedule=SHORT, refine=4), target, observation,
        Budget(iterations=most),
    )  # fmt: skip
    assert found.search is not None
    assert found.search.iterations == min(most, 150) + steps
    assert any(f"last {steps} steps" in n for n in found.notes) == bool(steps)


def test_masks_stay_masks() -> None:
    target, observation, _ = scene(dropped())
    found = found_by(DropoutInversion(schedule=SHORT, refine=4), target, observation)
    assert found.notes
    assert found.masks is not None
    for draw in found.masks:
        assert draw.value is not None
        assert float(draw.value.min()) >= 0
        assert float(draw.value.max()) <= 1


@pytest.mark.parametrize("why", ["kinks", "noise"])
def test_it_changes_nothing_where_it_has_no_business(why: str) -> None:
    model = relu_cnn() if why == "kinks" else dropped()
    target, observation, _ = scene(model, noise=0.1 if why == "noise" else 0.0)
    plain = found_by(DropoutInversion(schedule=SHORT), target, observation)
    same = found_by(DropoutInversion(schedule=SHORT, refine=4), target, observation)
    assert plain.images is not None
    assert same.images is not None
    assert torch.equal(plain.images, same.images)
    assert same.notes == plain.notes


def test_where_it_does_not_apply_it_takes_no_time_from_the_search() -> None:
    budget = Budget(seconds=300.0)
    for model, share in ((relu_cnn(), 1.0), (dropped(), 2 / 3)):
        target, observation, batch = scene(model)
        matching = Matching(target, observation, batch.labels, Cosine(), ())
        own, _ = refining.Refinement(4).split(matching, budget)
        assert own.seconds == pytest.approx(300.0 * share)


def test_clients_that_are_searched_together_are_refined_each() -> None:
    model = smooth_cnn(nn.Dropout(0.25))
    scenes = [scene(model, start=s) for s in (0, 1)]
    found = DropoutInversion(schedule=SHORT, refine=4).run_many(
        [t for t, _, _ in scenes], [o for _, o, _ in scenes], budget=Budget(),
        generators=[torch.Generator().manual_seed(s) for s in (0, 1)],
    )  # fmt: skip
    assert found is not None
    for one, (_, _, batch) in zip(found, scenes, strict=True):
        assert any("Gauss-Newton" in n for n in one.notes)
        assert ssim(one, batch) > 0.5


def test_what_it_was_before_comes_with_it() -> None:
    target, observation, _ = scene(dropped())
    plain = found_by(DropoutInversion(schedule=SHORT), target, observation)
    refined = found_by(DropoutInversion(schedule=SHORT, refine=4), target, observation)
    assert plain.images is not None
    assert refined.other is not None
    assert torch.equal(refined.other, plain.images)
    assert plain.other is None


def test_steps_that_fit_no_better_are_another_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the search's loss they do not; the image may be nearer all the same."""
    target, observation, _ = scene(dropped())
    plain = found_by(DropoutInversion(schedule=SHORT), target, observation)
    losses = iter((1.0, 2.0))
    monkeypatch.setattr(refining, "_loss", lambda *_: next(losses))
    found = found_by(DropoutInversion(schedule=SHORT, refine=2), target, observation)
    assert plain.images is not None
    assert found.images is not None
    assert torch.equal(found.images, plain.images)
    assert found.other is not None
    assert not torch.equal(found.other, plain.images)
    assert any("fit no better" in n for n in found.notes)


def test_an_audit_counts_for_each_image_what_shows_more() -> None:
    """In any order of the batch: a better fit is no reason to understate one image."""
    batch = Batch(photographs(3, SIDE), torch.arange(3))
    order = torch.tensor([2, 0, 1])
    refined, plain = (batch.images.flip(0) * 0.6), batch.images[order] * 0.5
    plain[0] = batch.images[2]  # the search had found this one
    found = Reconstruction(refined, "converged", "refined", other=plain)
    counted = nearer(found, batch)
    assert counted.images is not None
    assert torch.equal(counted.images[0], batch.images[2])
    assert torch.equal(counted.images[1:], refined[1:])
    assert NOTE.format(1, 3) in counted.notes
    assert counted.other is None


def test_neither_nan_nor_another_exact_image_hides_what_was_found() -> None:
    batch = Batch(photographs(2, SIDE), torch.arange(2))
    broken = torch.full_like(batch.images, torch.nan)
    other = batch.images.flip(-1)
    for images, state in ((broken, "converged"), (other, "exact")):
        found = Reconstruction(images, state, other=batch.images * 0.9)  # type: ignore[arg-type]
        counted = nearer(found, batch)
        assert counted.images is not None
        assert torch.equal(counted.images, batch.images * 0.9)
        assert counted.state != "exact"
    same = Reconstruction(batch.images, "exact", other=other)
    assert nearer(same, batch).state == "exact"


class TwoAnswers(DropoutInversion):
    """Refined to something else, after it had found the image."""

    name: ClassVar[str] = "two_answers"

    def run(self, target: Target, observation: Observation, **_: object) -> Any:
        right = photographs(1, SIDE)
        return Reconstruction(right.flip(-1), "plateau", "refined", other=right)

    def run_many(self, *_: object, **__: object) -> None:
        return None


def test_that_holds_in_an_audit() -> None:
    result = Auditor(
        smooth_cnn(), mean=MEAN, std=STD, client=Client(batch_size=1),
        attacks=[TwoAnswers()],
    ).audit((photographs(1, SIDE), torch.tensor([3])))  # fmt: skip
    worst = result.verdict.worst["ssim"].value
    assert worst is not None
    assert worst > 0.99


def test_masks_that_show_are_not_moved() -> None:
    """LeNet's is read off: the refinement keeps every entry of it."""
    torch.manual_seed(0)
    target, observation, _ = scene(lenet(0.5, size=SIDE))
    found = found_by(
        DropoutInversion(schedule=SHORT, initialisation="analytical", refine=2),
        target, observation,
    )  # fmt: skip
    assert any("Gauss-Newton" in n for n in found.notes)
    assert found.masks is not None
    (draw,) = [d for d in found.masks if d.is_mask]
    assert draw.value is not None
    assert bool(((draw.value == 0) | (draw.value == 1)).all())


def test_time_that_is_up_ends_it() -> None:
    target, observation, batch = scene(dropped())
    matching = Matching(target, observation, batch.labels, Cosine(), ())
    _, refinement = refining.Refinement(4).split(matching, Budget(seconds=300.0))
    assert refinement.deadline is not None
    soon = replace(refinement, deadline=time.monotonic() + 60).each(3)
    assert soon.deadline is not None
    assert soon.deadline - time.monotonic() < 21
    plain = found_by(DropoutInversion(schedule=SHORT), target, observation)
    assert plain.images is not None
    late = replace(refinement, deadline=time.monotonic())
    run = Descent(
        [matching.scale.apply(plain.images)], 1.0, 1.0, 1.0, 1, "goal", [], []
    )
    assert late(matching, lambda _: None, (), run) is run


def test_ctrl_c_ends_all_clients_and_all_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []

    def stopped(*_: object, **__: object) -> None:
        begun.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr("privaudit.attacks._levenberg.Tangent", stopped)
    model = dropped()
    scenes = [scene(model, start=s) for s in (0, 1, 2)]
    found = DropoutInversion(schedule=SHORT, refine=4).run_many(
        [t for t, _, _ in scenes], [o for _, o, _ in scenes], budget=Budget(),
        generators=[torch.Generator().manual_seed(s) for s in (0, 1, 2)],
    )  # fmt: skip
    assert found is not None
    assert len(begun) == 1
    assert [f.reason for f in found] == [INTERRUPTED] * 3
    assert all(f.images is not None for f in found)


@pytest.mark.parametrize(
    "error", [RuntimeError("no derivative"), MemoryError(), TypeError("x")]
)
def test_what_breaks_it_costs_nothing_and_is_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    target, observation, _ = scene(dropped())
    plain = found_by(DropoutInversion(schedule=SHORT), target, observation)

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(refining, "least_squares", broken)
    found = found_by(DropoutInversion(schedule=SHORT, refine=4), target, observation)
    assert plain.images is not None
    assert found.images is not None
    assert torch.equal(found.images, plain.images)
    (note,) = found.notes
    assert "not refined" in note


def test_stopping_it_keeps_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    target, observation, _ = scene(dropped())
    plain = found_by(DropoutInversion(schedule=SHORT), target, observation)

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privaudit.attacks._levenberg.Tangent", stopped)
    found = found_by(DropoutInversion(schedule=SHORT, refine=4), target, observation)
    assert plain.images is not None
    assert found.images is not None
    assert (found.state, found.reason) == ("stopped", INTERRUPTED)
    assert torch.equal(found.images, plain.images)


class Functional(nn.Module):
    """A kink that no module shows."""

    def __init__(self, kinked: bool) -> None:
        super().__init__()
        self.inner, self.kinked = nn.Linear(3 * SIDE * SIDE, 10), kinked

    def forward(self, x: Tensor) -> Tensor:
        made = self.inner(x.flatten(1))
        return F.relu(made) if self.kinked else F.gelu(made)


@pytest.mark.parametrize(
    ("between", "kinked"),
    [
        (nn.ReLU(), True), (nn.ReLU6(), True), (nn.LeakyReLU(), True),
        (nn.MaxPool2d(3, 1, 1), True), (nn.Hardsigmoid(), True), (nn.SELU(), True),
        (nn.ELU(0.5), True), (nn.ELU(), False), (nn.Softshrink(), True),
        (nn.GELU(), False), (nn.SiLU(), False), (nn.Sigmoid(), False),
        (nn.Softplus(), False), (nn.GroupNorm(1, 16), False),
    ],
)  # fmt: skip
def test_kinks_are_seen_below_autograd(between: nn.Module, kinked: bool) -> None:
    assert kinks_of(smooth_cnn(between)) == kinked


@pytest.mark.parametrize("kinked", [True, False])
def test_kinks_are_seen_in_functions(kinked: bool) -> None:
    assert kinks_of(Functional(kinked)) == kinked


def kinks_of(model: nn.Module) -> bool:
    target, observation, batch = scene(model)
    before = [p.clone() for p in model.parameters()]
    world = torch.random.get_rng_state()
    seen = has_kinks(Matching(target, observation, batch.labels, Cosine(), ()))
    assert torch.equal(torch.random.get_rng_state(), world)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(p.grad is None for p in model.parameters())
    return seen


def test_more_masks_than_it_is_good_for_are_left_to_the_search() -> None:
    target, observation, _ = scene(dropped())
    found = GaussNewton(most_masks=1.0).run(
        target, observation, budget=Budget(), generator=torch.Generator()
    )
    assert found.state == "skipped"
    assert "4,096 mask entries do not show, for 768 pixel values" in found.reason
