"""Waves, the mean over restarts, and what colour noise costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit.attacks import Ensemble
from privaudit.attacks._descend import Row
from privaudit.attacks._feature_search import STUCK, _mean
from privaudit.attacks._waves import Waves, shape_of_waves, spectrum
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.exposure import Cut
from privaudit.priors import OpponentTotalVariation, PixelTotalVariation
from privaudit.types import FeatureLayout, FeatureTarget
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

    def watched(runs: Sequence[Row]) -> Row:
        seen.append(runs)
        return _mean(runs)

    monkeypatch.setattr("privaudit.attacks._feature_search._mean", watched)
    found = case.attack(SHORT, budget=Budget())
    assert len(seen) == len(found) == 2
    for runs, one, truth in zip(seen, found, case.images, strict=True):
        assert one.images is not None
        alone = [error(r.image[0], truth) for r in runs]
        assert len(set(alone)) == 4
        assert error(one.images[0], truth) < sum(alone) / len(alone)


@pytest.mark.parametrize("weight", [0.33, 0.0])
def test_what_is_told_of_a_mean_is_true(weight: float) -> None:
    """Its own loss, or that of its best restart and a note with its own."""
    case = pooled_case()
    attack = SHORT.model_copy(update={"tv_weight": weight, "tv_weight_end": weight})
    found = case.attack(attack, budget=Budget())
    images = torch.cat([one.images for one in found if one.images is not None])
    again = attack.loss_at(case.target, case.observation, images)
    for one, own in zip(found, again, strict=True):
        assert one.search is not None
        assert (one.search.restarts, one.search.iterations) == (4, 320)
        told = one.search.loss_final
        note = "".join(n for n in one.notes if "mean of the searches" in n)
        assert bool(note) == (own > told * (1 + 1e-5))
        if note:
            assert f"(loss {own:.2g})" in note
            assert f"({told:.2g})" in note
        else:
            assert told == pytest.approx(own, rel=1e-5)


def row(image: float, value: float) -> Row:
    picture = torch.full((1, 1, 2, 2), image)
    return Row(picture, value, 1.0, value, 5, "iterations", [], [])


def test_a_restart_that_is_stuck_has_no_say() -> None:
    near, nearer = row(0.2, 1.5), row(0.4, 1.0)
    stuck, broken = row(1.0, 1.01 * STUCK), row(1.0, float("inf"))
    mean = _mean([near, stuck, nearer, broken])
    assert float(mean.image.mean()) == pytest.approx(0.3)
    assert mean.value == 1.0
    assert _mean([broken, broken]).value == float("inf")


def test_fewer_searches_are_begun_where_time_is_short() -> None:
    case = pooled_case()
    (short, _) = case.attack(Ensemble(restarts=8), budget=Budget(seconds=0.2))
    assert short.search is not None
    assert short.search.restarts == 1
    assert "time for 1 of 8 searches an image" in short.notes
    (enough, _) = case.attack(
        Ensemble(iterations=20, restarts=2), budget=Budget(seconds=60)
    )
    assert enough.search is not None
    assert enough.search.restarts == 2
    assert not any("searches an image" in note for note in enough.notes)


def test_who_asks_for_restarts_gets_them() -> None:
    case = pooled_case()
    budget = Budget(seconds=0.5, restarts=3)
    (found, _) = case.attack(Ensemble(restarts=8), budget=budget)
    assert found.search is not None
    assert found.search.restarts == 3


def test_ctrl_c_while_time_is_taken_ends_it() -> None:
    case = pooled_case()
    calls = []

    class Interrupting:
        layout = case.target.exposure.layout
        normalisation = case.target.exposure.normalisation

        def predict(self, model: nn.Module, images: Tensor) -> Tensor:
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return case.target.exposure.predict(model, images)

    exposure: Any = Interrupting()
    target = FeatureTarget(case.target.model, exposure, case.target.public)
    found = SHORT.run(
        target, case.observation, budget=Budget(seconds=60),
        generator=torch.Generator(),
    )  # fmt: skip
    assert [one.reason for one in found] == [INTERRUPTED] * 2
    assert all(one.images is None for one in found)
    assert len(calls) < 5
