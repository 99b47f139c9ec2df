"""Waves, the mean over restarts, and what colour noise costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from privaudit._clock import Clock
from privaudit.attacks import Ensemble, FeatureAttack, Lm
from privaudit.attacks._descend import Row
from privaudit.attacks._restarts import MEAN, mean_of, search_in_rounds
from privaudit.attacks._waves import Waves, shape_of_waves, spectrum
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.exposure import Cut
from privaudit.metrics import Ssim
from privaudit.priors import OpponentTotalVariation, PixelTotalVariation
from privaudit.session.feature_runner import Request, run_features
from privaudit.types import (
    Batch,
    FeatureLayout,
    FeatureObservation,
    FeatureTarget,
    Reconstruction,
)
from tests.contract.feature_cases import FeatureCase, feature_case

SHORT = Ensemble(iterations=80, restarts=4)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (1, 6), (5, 1)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_waves_make_images_of_every_size(channels: int, size: tuple[int, int]) -> None:
    start = torch.full((2, channels, *size), 0.4)
    still = Waves(start, torch.zeros(2, *shape_of_waves(channels, *size)))
    assert torch.equal(still.images(0.0), start)
    moving = Waves(start, drawn(2, *shape_of_waves(channels, *size)))
    images = moving.images(0.5)
    assert images.shape == start.shape
    (slope,) = torch.autograd.grad(images.square().sum(), moving.leaves)
    assert bool(slope.isfinite().all())


def test_slow_waves_are_longer_than_quick_ones() -> None:
    lengths = spectrum(32, 32)
    assert lengths.square().mean() == pytest.approx(1)
    assert lengths[0, 2] / lengths[0, 8] == pytest.approx(4)
    assert lengths[-2, 0] == pytest.approx(float(lengths[2, 0]))
    assert lengths[0, 0] == lengths.max()


def test_random_waves_look_like_a_photograph_in_numbers() -> None:
    """As bright and as colourful: within a third of what photographs have."""
    start = torch.full((20, 3, 64, 64), 0.5)
    images = Waves(start, drawn(20, *shape_of_waves(3, 64, 64))).images(0.0).detach()
    brightness = images.mean(1)
    assert float(brightness.std()) == pytest.approx(0.25, rel=0.35)
    assert float((images[:, 0] - images[:, 2]).std()) == pytest.approx(0.19, rel=0.35)


def test_a_grey_picture_is_as_smooth_as_by_the_plain_total_variation() -> None:
    grey = torch.rand(2, 1, 6, 9, generator=torch.Generator().manual_seed(1))
    plain, own = PixelTotalVariation(), OpponentTotalVariation()
    assert torch.equal(own.penalty(grey), plain.penalty(grey))
    shown = grey.expand(-1, 3, -1, -1)
    assert torch.allclose(own.penalty(shown), plain.penalty(shown), atol=1e-6)
    four = grey.expand(-1, 4, -1, -1)
    assert torch.equal(own.penalty(four), plain.penalty(four))


def test_noise_of_colour_counts_more_than_noise_of_brightness() -> None:
    noise = drawn(1, 1, 16, 16)
    bright = (0.5 + 0.1 * noise).expand(1, 3, -1, -1)
    red_green = torch.cat([0.5 + 0.1 * noise, 0.5 - 0.1 * noise, 0.5 + 0 * noise], 1)
    own, plain = OpponentTotalVariation(), PixelTotalVariation()
    ratio = own.penalty(red_green) / own.penalty(bright)
    assert float(ratio) > 1.5 * float(plain.penalty(red_green) / plain.penalty(bright))


def error(image: Tensor, truth: Tensor) -> float:
    return float((image - truth).square().mean())


def pooled_case() -> FeatureCase:
    """384 values of 768 pixels."""
    case = feature_case("nchw")
    model = nn.Sequential(*list(case.target.model.children())[:5], nn.AvgPool2d(2))
    exposure = replace(
        case.target.exposure, cut=Cut("5"), layout=FeatureLayout("nchw", 0, (4, 4))
    )
    target = FeatureTarget(model, exposure, case.target.public)
    return FeatureCase(target, case.batch)


def test_the_mean_of_restarts_is_closer_than_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Than they are on average, behind a cut that leaves half of the image open."""
    case = pooled_case()
    seen: list[Sequence[Row]] = []

    def watched(runs: Sequence[Row]) -> tuple[Row, int]:
        seen.append(runs)
        return mean_of(runs)

    monkeypatch.setattr("privaudit.attacks._restarts.mean_of", watched)
    found = case.attack(SHORT, budget=Budget())
    assert len(seen) == len(found) == 2
    for runs, one, truth in zip(seen, found, case.images, strict=True):
        assert one.images is not None
        alone = [error(r.image[0], truth) for r in runs]
        assert len(set(alone)) == 4
        assert error(one.images[0], truth) < sum(alone) / len(alone)


def told(one: Reconstruction) -> str:
    return "".join(n for n in one.notes if n.startswith(MEAN))


@pytest.mark.parametrize("weight", [0.33, 0.0])
def test_what_is_told_of_a_mean_is_true(weight: float) -> None:
    """Its own loss, or that of its best restart and a note with its own."""
    case = pooled_case()
    attack = SHORT.model_copy(update={"tv_weight": weight, "tv_weight_end": weight})
    found = case.attack(attack, budget=Budget())
    images = torch.cat([one.images for one in found if one.images is not None])
    again = attack.loss_at(case.target, case.observation, images)
    for number, (one, own) in enumerate(zip(found, again, strict=True)):
        assert one.search is not None
        assert (one.search.restarts, one.search.iterations) == (4, 320)
        loss, note = one.search.loss_final, told(one)
        if not note:
            assert loss == pytest.approx(own, rel=1e-4)
            assert one.other is None
            continue
        assert own > loss
        assert "of 4 searches" in note
        assert one.other is not None
        sent = case.observation.features[number : number + 1]
        part = FeatureObservation(sent, case.observation.image_shape)
        (others,) = attack.loss_at(case.target, part, one.other)
        assert others == pytest.approx(loss, rel=1e-3)


def squared_case() -> FeatureCase:
    """Features that do not know the sign: searches end at images that differ."""

    class Squared(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.square()

    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = nn.Conv2d(3, 6, 4, stride=4, bias=False)
    model = nn.Sequential(first, Squared())
    case = feature_case("nchw")
    exposure = replace(
        case.target.exposure, cut=Cut("1"), layout=FeatureLayout("nchw", 0, (4, 4))
    )
    return FeatureCase(FeatureTarget(model, exposure, None), case.batch)


def test_the_best_search_counts_as_well_as_the_mean() -> None:
    """Where searches end at different images their mean may show less than one does."""
    case = squared_case()
    found = case.attack(SHORT, budget=Budget())
    assert all(one.other is not None for one in found)
    requests = [
        Request(
            Batch(case.images[i : i + 1], None),
            FeatureObservation(
                case.observation.features[i : i + 1], case.observation.image_shape
            ),
            range(i, i + 1),
        )
        for i in range(2)
    ]
    target = case.target
    run = run_features(SHORT, target, requests, clock=Clock(Budget()), seed=0)
    for one, counted, truth in zip(found, run.outcomes, case.images, strict=True):
        assert one.images is not None
        assert one.other is not None
        assert counted.images is not None
        assert counted.other is None
        alike = [
            ssim(truth, shown) for shown in (one.images, one.other, counted.images)
        ]
        assert alike[2] == pytest.approx(max(alike[:2]), abs=1e-3)


def ssim(truth: Tensor, image: Tensor) -> float:
    (score,) = Ssim().score(truth[None], image)
    assert score.value is not None
    return score.value


def row(image: float, value: float) -> Row:
    picture = torch.full((1, 1, 2, 2), image)
    return Row(picture, value, 1.0, value, 5, "iterations", [], [])


def test_a_restart_that_is_stuck_has_no_say() -> None:
    near, nearer = row(0.2, 1.5), row(0.4, 1.0)
    stuck, broken = row(1.0, 2.02), row(1.0, float("inf"))
    mean, count = mean_of([near, stuck, nearer, broken])
    assert float(mean.image.mean()) == pytest.approx(0.3)
    assert (mean.value, count) == (1.0, 2)
    assert mean_of([broken, broken])[0].value == float("inf")


def test_the_best_has_a_say_whatever_its_loss() -> None:
    """A cosine that rounds below zero."""
    mean, count = mean_of([row(0.2, -6e-8), row(0.9, 1.0)])
    assert float(mean.image.mean()) == pytest.approx(0.2)
    assert count == 1


class Paced:
    """Searches of one image that take so long, for so many restarts at once."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, fixed: float, each: float, room: int = 99
    ) -> None:
        self.now, self.made = 0.0, list[int]()
        self.fixed, self.each, self.room = fixed, each, room
        clock = "privaudit.attacks._restarts.time.monotonic"
        monkeypatch.setattr(clock, lambda: self.now)

    def __call__(self, times: int, within: Budget) -> tuple[list[Row], int]:
        if times > self.room:
            raise torch.OutOfMemoryError("out of memory")
        needed = self.fixed + self.each * times
        self.now += needed if within.seconds is None else min(needed, within.seconds)
        self.made.append(times)
        return [row(0.5, 1.0)] * times, 7


@pytest.mark.parametrize(
    ("fixed", "each", "seconds", "made"),
    [
        (0.0, 1.0, 100, [1, 7]),
        (1.0, 0.0, 3, [1, 2, 2]),
        (0.0, 1.0, 3.5, [1, 2, 1]),
        (0.0, 1.0, 3.2, [1, 2]),
        (0.0, 5.0, 3, [1]),
        (0.0, 5.0, None, [8]),
    ],
)
def test_as_many_searches_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
    fixed: float,
    each: float,
    seconds: float | None,
    made: list[int],
) -> None:
    paced = Paced(monkeypatch, fixed, each)
    found = search_in_rounds(paced, 1, 8, Budget(seconds=seconds))
    assert paced.made == made
    assert [len(runs) for runs in found.searches] == [sum(made)]
    assert found.left_out == 8 - sum(made)
    if seconds is not None:
        assert paced.now <= seconds


def test_restarts_that_do_not_fit_are_made_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paced = Paced(monkeypatch, 0.0, 1.0, room=3)
    found = search_in_rounds(paced, 1, 8, Budget())
    assert paced.made == [2, 2, 2, 2]
    assert found.left_out == 0
    assert found.notes == ("out of memory: restarts were made 2 at once",)
    with pytest.raises(torch.OutOfMemoryError):
        search_in_rounds(Paced(monkeypatch, 0.0, 1.0, room=0), 1, 8, Budget())
    with pytest.raises(torch.OutOfMemoryError):
        search_in_rounds(Paced(monkeypatch, 0.0, 1.0, room=3), 2, 8, Budget())


def test_fewer_searches_than_wanted_count_as_stopped() -> None:
    case = pooled_case()
    (short, _) = case.attack(Ensemble(restarts=8), budget=Budget(seconds=0.2))
    assert short.search is not None
    assert short.search.restarts < 8
    assert short.state == "stopped"
    (enough, _) = case.attack(
        Ensemble(iterations=20, restarts=2), budget=Budget(seconds=60)
    )
    assert enough.search is not None
    assert (enough.search.restarts, enough.state) == (2, "plateau")


def test_who_asks_for_restarts_gets_them() -> None:
    case = pooled_case()
    budget = Budget(seconds=60, restarts=3, iterations=5)
    (found, _) = case.attack(Ensemble(restarts=8), budget=budget)
    assert found.search is not None
    assert found.search.restarts == 3


def test_ctrl_c_ends_the_rounds() -> None:
    case = pooled_case()
    calls = []

    class Interrupting:
        layout = case.target.exposure.layout
        normalisation = case.target.exposure.normalisation

        def predict(self, model: nn.Module, images: Tensor) -> Tensor:
            calls.append(1)
            if len(calls) == 30:
                raise KeyboardInterrupt
            return case.target.exposure.predict(model, images)

    exposure: Any = Interrupting()
    target = FeatureTarget(case.target.model, exposure, case.target.public)
    found = Ensemble(iterations=20).run(
        target, case.observation, budget=Budget(seconds=60),
        generator=torch.Generator(),
    )  # fmt: skip
    assert [one.reason for one in found] == [INTERRUPTED] * 2
    assert all(one.images is not None for one in found)
    assert len(calls) < 40


def test_a_polish_says_nothing_of_the_mean_it_began_with() -> None:
    case = pooled_case()
    lm = Lm(iterations=40, channels=(8, 8), kernels=(3, 3), restarts=3, average=True)
    before = case.attack(lm, budget=Budget())
    after = case.attack(lm.model_copy(update={"polish": 20}), budget=Budget())
    assert any(told(one) for one in before)
    assert not any(told(one) for one in after)


def test_room_that_was_found_out_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second attempt at what did not fit, however much time is left."""
    paced = Paced(monkeypatch, 0.0, 1.0, room=2)
    asked: list[int] = []

    def search(times: int, within: Budget) -> tuple[list[Row], int]:
        asked.append(times)
        return paced(times, within)

    found = search_in_rounds(search, 1, 8, Budget(seconds=100))
    assert asked == [1, 7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert found.left_out == 0


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 3, 16, 16)])
def test_a_second_answer_that_is_no_picture_is_left_out(shape: tuple[int, ...]) -> None:
    case = feature_case("nchw", count=1)
    seen = case.observation

    class Odd(FeatureAttack):
        name: ClassVar[str] = "odd"

        @classmethod
        def tiny(cls) -> Odd:
            return cls()

        def run(self, *_: Any, **__: Any) -> list[Reconstruction]:
            grey = torch.full((1, 3, 16, 16), 0.5)
            return [Reconstruction(grey, "plateau", other=torch.zeros(shape))]

        def loss_at(self, *_: Any, **__: Any) -> list[float]:
            return [0.0]

    request = Request(Batch(case.images, None), seen, range(1))
    ran = run_features(Odd(), case.target, [request], clock=Clock(Budget()), seed=0)
    (one,) = ran.outcomes
    assert one.images is not None
    assert one.other is None
    assert any("second answer was left out" in note for note in one.notes)
