"""Searches through features: the loop, what it is given, how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit._progress import Tick, watched_by
from privaudit.attacks import FeatureAttack, InverseNetwork, Lm, Rmle
from privaudit.attacks._descend import Course
from privaudit.attacks._feature_search import by_descent, search_features
from privaudit.attacks._guesses import BoxedPixels
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.errors import AttackError, ConfigError
from privaudit.types import (
    Batch,
    FeatureObservation,
    FeatureTarget,
    Reconstruction,
)
from tests.contract.feature_cases import SHAPE, FeatureCase, feature_case

FREE = Budget()
SMALL = Lm(iterations=12, channels=(8, 8), kernels=(3, 3), inputs=4)
SHORT = Rmle(iterations=12)
FREE_PIXELS = Rmle(iterations=12, box=False)
LEARNT = InverseNetwork(width=16, layers=1, iterations=20, batch_size=4)


def pictures(found: list[Reconstruction]) -> Tensor:
    images = [one.images for one in found if one.images is not None]
    assert len(images) == len(found), [one.reason for one in found]
    return torch.cat(images)


def psnr_db(case: FeatureCase, found: list[Reconstruction]) -> list[float]:
    error = (pictures(found) - case.images).square().flatten(1).mean(1)
    return (-10 * error.log10()).tolist()


class Meddled:
    """An exposure whose ``change`` sees every prediction, with its number."""

    def __init__(self, case: FeatureCase, change: Callable[[int, Tensor], Tensor]):
        self.inner, self.change, self.calls = case.target.exposure, change, 0
        self.layout, self.normalisation = self.inner.layout, self.inner.normalisation

    def predict(self, model: Any, images: Tensor) -> Tensor:
        self.calls += 1
        return self.change(self.calls, self.inner.predict(model, images))


def meddled(
    case: FeatureCase, change: Callable[[int, Tensor], Tensor]
) -> FeatureTarget:
    exposure: Any = Meddled(case, change)
    return FeatureTarget(case.target.model, exposure, case.target.public)


def run(
    attack: FeatureAttack,
    target: FeatureTarget,
    observation: FeatureObservation,
    budget: Budget = FREE,
) -> list[Reconstruction]:
    generator = torch.Generator().manual_seed(0)
    return attack.run(target, observation, budget=budget, generator=generator)


def interrupting(at: int) -> Callable[[int, Tensor], Tensor]:
    def change(call: int, features: Tensor) -> Tensor:
        if call == at:
            raise KeyboardInterrupt
        return features

    return change


SHALLOW: list[tuple[str, FeatureAttack, float]] = [
    ("nchw", Rmle(iterations=300), 26),
    ("tokens", Rmle(iterations=300), 22),
    ("nchw", Lm(iterations=200, channels=(16, 16), kernels=(3, 3)), 21),
    ("tokens", Lm(iterations=200, channels=(16, 16), kernels=(3, 3)), 20),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "attack", "least_db"), SHALLOW)
def test_a_shallow_cut_is_undone(
    kind: str, attack: FeatureAttack, least_db: float
) -> None:
    case = feature_case(kind)
    assert min(psnr_db(case, case.attack(attack, budget=FREE))) > least_db


def doubled(kind: str, attack: FeatureAttack) -> FeatureCase:
    """Pixels in float64: kinks of the total variation make much of a rounding."""
    case = feature_case(kind, count=3)
    if isinstance(attack, Rmle):
        case.target.model.double()
        case = FeatureCase(case.target, Batch(case.images.double(), None))
        wide = replace(
            case.observation, features=case.target.exposure.predict(
                case.target.model, case.images
            ).detach()
        )  # fmt: skip
        object.__setattr__(case, "observation", wide)
    return case


@pytest.mark.parametrize("attack", [SHORT, FREE_PIXELS, SMALL, LEARNT])
@pytest.mark.parametrize("kind", ["tokens", "nchw"])
def test_a_batch_is_its_images_one_by_one(kind: str, attack: FeatureAttack) -> None:
    case = doubled(kind, attack)
    together = pictures(case.attack(attack))
    alone = [case.attack_some(attack, slice(i, i + 1)) for i in range(3)]
    for index, one in enumerate(alone):
        assert torch.allclose(together[index : index + 1], pictures(one), atol=1e-3)
    assert float((together[0] - together[1]).abs().mean()) > 1e-2


@pytest.mark.parametrize("attack", [SHORT, SMALL])
def test_how_many_are_searched_together_changes_nothing(attack: FeatureAttack) -> None:
    case = doubled("nchw", attack)
    apart = type(attack)(**{**attack.settings(), "together": 2})
    assert torch.allclose(
        pictures(case.attack(attack)), pictures(case.attack(apart)), atol=1e-3
    )


@pytest.mark.parametrize(
    "attack", [SMALL, SHORT.model_copy(update={"restarts": 2}), LEARNT]
)
def test_the_generator_decides_what_is_drawn(attack: FeatureAttack) -> None:
    case = feature_case("nchw", count=1)
    target = meddled(case, lambda _, features: features)
    drawn: list[Tensor] = []
    for seed in (0, 0, 1):
        target.memory.clear()
        asked: list[Tensor] = []
        target.exposure.change = lambda _, f, asked=asked: (  # type: ignore[attr-defined]
            asked.append(f.detach().clone()) or f
        )
        attack.run(
            target, case.observation, budget=Budget(iterations=1),
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        drawn.append(torch.cat([a.flatten() for a in asked]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_without_restarts_pixels_start_from_mean_colour() -> None:
    case = feature_case("nchw", count=1)
    (found,) = case.attack(SHORT)
    assert found.search is not None
    iteration, first = found.search.pictures[0]
    assert iteration == 0
    assert torch.allclose(first, torch.full(SHAPE, 0.5))


def test_the_best_restart_is_returned() -> None:
    case = feature_case("nchw", count=2)
    once = case.attack(SHORT, budget=FREE)
    both = case.attack(SHORT, budget=Budget(restarts=3))
    for one, best in zip(once, both, strict=True):
        assert one.search is not None
        assert best.search is not None
        assert best.search.restarts == 3
        assert best.search.iterations == 3 * one.search.iterations
        assert best.search.unknowns == one.search.unknowns == 3 * 16 * 16


def test_a_search_tells_its_way() -> None:
    case = feature_case("tokens")
    seen: list[Tick] = []
    with watched_by(seen.append):
        found = case.attack(Rmle(iterations=35), budget=FREE)
    assert [t.done for t in seen] == [10, 20, 30, 35]
    assert all(t.total == 35 for t in seen)
    assert all(later.loss < seen[0].loss for later in seen[1:])
    for one in found:
        assert one.search is not None
        assert [at for at, _ in one.search.pictures] == [0, 10, 30]
        assert [at for at, _ in one.search.curve] == [10, 20, 30, 35]
        assert one.search.path == "2 image(s) at once"
        assert one.state == "plateau"
        assert one.reason == "ended by iterations after 35 iterations"


def test_ctrl_c_keeps_what_was_found() -> None:
    case = feature_case("nchw")
    target = meddled(case, interrupting(15))
    for one in run(Rmle(iterations=50), target, case.observation):
        assert one.state == "stopped"
        assert one.reason == INTERRUPTED
        assert one.search is not None
        assert one.search.iterations in (10, 14)
        assert one.search.loss_final < one.search.loss_start


def test_after_ctrl_c_no_further_image_is_begun() -> None:
    case = feature_case("nchw", count=3)
    target = meddled(case, interrupting(5))
    attack = Rmle(iterations=50, together=1)
    first, *others = run(attack, target, case.observation)
    assert first.images is not None
    assert all(o.images is None and o.reason == INTERRUPTED for o in others)


def test_ctrl_c_before_the_first_loss_leaves_no_image() -> None:
    case = feature_case("nchw")
    for one in run(SHORT, meddled(case, interrupting(1)), case.observation):
        assert one.images is None
        assert one.reason == INTERRUPTED


def test_the_budget_is_a_cap_and_is_named() -> None:
    case = feature_case("nchw")
    for one in case.attack(Rmle(iterations=50), budget=Budget(iterations=5)):
        assert one.state == "stopped"
        assert one.reason == "the budget allows no more than 5 iterations"
        assert one.search is not None
        assert one.search.iterations == 5


def test_time_that_is_up_stops_all_images() -> None:
    case = feature_case("nchw", count=3)
    attack = Rmle(iterations=10_000, together=2)
    found = case.attack(attack, budget=Budget(seconds=1e-3))
    assert [one.state for one in found] == ["stopped"] * 3
    assert "time" in found[0].reason
    assert found[2].reason == "no time was left for this image"
    assert found[2].images is None


def test_schedules_follow_the_time_where_it_is_short() -> None:
    """A budget of seconds must not end a search before its smoothing has gone."""
    case = feature_case("nchw", count=1)
    weights: list[float] = []

    class Watched(Course):
        def smooth_at(self, progress: float) -> float:
            weights.append(super().smooth_at(progress))
            return weights[-1]

    course = Watched(
        learning_rate=0.05, iterations=10**6, smooth=1.0, smooth_end=0.01, seams=0.0
    )
    plan = by_descent(course, lambda *_: BoxedPixels(torch.rand(1, *SHAPE)))
    search_features(
        case.target, case.observation, plan=plan, budget=Budget(seconds=0.5),
        generator=torch.Generator(),
    )  # fmt: skip
    assert weights[0] > 0.5
    assert min(weights[:-1]) < 0.1


def test_one_image_that_breaks_does_not_break_the_others() -> None:
    case = feature_case("nchw", count=3)

    def change(call: int, features: Tensor) -> Tensor:
        broken = torch.ones(len(features), 1, 1, 1)
        if call > 4 and len(features) == 3:
            broken[1] = float("nan")
        return features * broken

    found = run(Rmle(iterations=30), meddled(case, change), case.observation)
    alone = run(Rmle(iterations=30), case.target, case.observation)
    assert [one.state for one in found] == ["plateau", "failed", "plateau"]
    assert found[1].reason.startswith("numerical")
    for index in (0, 2):
        assert torch.allclose(pictures(found)[index], pictures(alone)[index], atol=2e-3)


def test_what_was_never_finite_has_no_image() -> None:
    case = feature_case("nchw", count=1)
    target = meddled(case, lambda _, features: features * float("nan"))
    (found,) = run(SHORT, target, case.observation)
    assert found.images is None
    assert found.state == "failed"
    assert found.search is None


def test_a_search_that_gains_nothing_ends_by_itself() -> None:
    case = feature_case("nchw")
    attack = Rmle(iterations=500, learning_rate=0.0, tv_weight=0.0, give_up=25)
    for one in case.attack(attack, budget=FREE):
        assert one.state == "plateau"
        assert one.reason.startswith("ended by plateau")
        assert one.search is not None
        assert one.search.iterations < 50


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("attack", [SHORT, SMALL, LEARNT])
def test_features_that_are_not_finite_are_refused(
    attack: FeatureAttack, bad: float
) -> None:
    case = feature_case("nchw")
    features = case.observation.features.clone()
    features[0, 0, 0, 0] = bad
    with pytest.raises(AttackError, match="1 of 3072 values NaN or infinite"):
        run(attack, case.target, FeatureObservation(features, SHAPE))


def test_features_that_are_zero_are_refused() -> None:
    case = feature_case("nchw")
    none = torch.zeros_like(case.observation.features)
    with pytest.raises(AttackError, match="expected features that are not zero"):
        run(SHORT, case.target, FeatureObservation(none, SHAPE))


def test_an_unknown_distance_is_refused_by_name() -> None:
    case = feature_case("nchw")
    with pytest.raises(ConfigError, match="mean_squared_error, token_cosine"):
        run(Rmle(distance="cosine"), case.target, case.observation)


def test_the_distance_can_be_chosen() -> None:
    case = feature_case("nchw")
    values = [
        Rmle(distance=name).loss_at(
            case.target, case.observation, torch.full_like(case.images, 0.5)
        )
        for name in (None, "mean_squared_error", "token_cosine")
    ]
    assert values[0] == values[1] != values[2]


def test_a_grid_that_does_not_divide_the_image_is_said() -> None:
    case = feature_case("tokens")
    layout = replace(case.target.exposure.layout, grid=(3, 4))
    exposure = replace(case.target.exposure, layout=layout)
    target = replace(case.target, exposure=exposure)
    for one in run(SHORT, target, case.observation):
        assert any("3×4 patches do not divide" in note for note in one.notes)
    for one in run(Rmle(iterations=3, patch_weight=0), target, case.observation):
        assert not one.notes


def test_tokens_without_a_grid_are_said_to_have_none() -> None:
    case = feature_case("tokens")
    layout = replace(case.target.exposure.layout, grid=None)
    target = replace(case.target, exposure=replace(case.target.exposure, layout=layout))
    for one in run(SHORT, target, case.observation):
        assert any("no patch grid is known" in note for note in one.notes)


def test_pixels_may_start_from_what_was_found_before() -> None:
    case = feature_case("nchw")
    attack = Rmle(iterations=3, start="best")
    for one in run(attack, case.target, case.observation):
        assert any("started from mean colour" in note for note in one.notes)
    case.target.memory["start"] = case.images
    for one, image in zip(
        run(attack, case.target, case.observation), case.images, strict=True
    ):
        assert one.search is not None
        assert torch.allclose(one.search.pictures[0][1], image, atol=1e-5)
        assert not one.notes


@pytest.mark.parametrize("free", [False, True])
def test_pixels_that_are_boxed_stay_inside(free: bool) -> None:
    case = feature_case("nchw")
    outside: list[bool] = []
    inner = case.target.exposure.predict
    target = meddled(case, lambda _, features: features)

    def predict(model: Any, images: Tensor) -> Tensor:
        outside.append(bool((images < -0.01).any() or (images > 1.01).any()))
        return inner(model, images)

    target.exposure.predict = predict  # type: ignore[method-assign]
    run(Rmle(iterations=60, box=not free), target, case.observation)
    assert any(outside) is free


def test_what_is_smoothed_falls_by_the_weights() -> None:
    course = Course(
        learning_rate=1.0, iterations=10, smooth=1.0, smooth_end=0.01, seams=0, cool=0.5
    )
    assert [round(course.smooth_at(p), 4) for p in (0, 0.5, 1)] == [1.0, 0.1, 0.01]
    assert [course.rate_at(p) for p in (0, 0.5, 0.75)] == [1.0, 1.0, 0.5]
    steady = replace(course, smooth_end=1.0, cool=0.0)
    assert steady.smooth_at(0.7) == steady.rate_at(0.9) == 1.0
    assert replace(course, smooth_end=0.0).smooth_at(1.0) == pytest.approx(1e-4)
