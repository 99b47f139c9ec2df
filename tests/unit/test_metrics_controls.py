"""What scores mean: unrelated pairs, the picture ladder, re-identification, gaps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from privaudit._controls import shipped_images
from privaudit.metrics import Mse, ReIdentification, Ssim
from privaudit.metrics._controls import (
    LADDER,
    MAX_PAIRS,
    MIN_PAIRS,
    picture_ladder,
    unrelated_pairs,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, size: int = 32) -> Tensor:
    return shipped_images(64, (3, size, size))[:count]


@pytest.mark.parametrize("count", [1, 2, 7, 20, 64])
def test_there_are_always_enough_pairs(count: int) -> None:
    found = unrelated_pairs(Ssim(), images(count), images(64), generator=generator())
    assert MIN_PAIRS <= found.pairs <= MAX_PAIRS
    assert -1 <= found.p95 < 0.9


def test_copies_of_one_image_are_no_unrelated_pair() -> None:
    """Five copies: every pair of the user's own is equal, and left out."""
    same = images(1).expand(5, -1, -1, -1)
    found = unrelated_pairs(Ssim(), same, images(64)[1:], generator=generator())
    assert found.pairs >= MIN_PAIRS
    assert found.p95 < 0.9


def test_the_leaky_end_of_a_distance_is_the_low_one() -> None:
    args = images(20), images(64)
    mse = unrelated_pairs(Mse(), *args, generator=generator())
    values = [s.value or 0.0 for s in Mse().score(args[0][:10], args[0][10:])]
    assert mse.p95 < sorted(values)[len(values) // 2]


def test_a_metric_without_values_has_no_pairs() -> None:
    small = images(3, size=2)
    found = unrelated_pairs(Ssim(), small, images(64, size=2), generator=generator())
    assert found.pairs == 0


def test_pairs_depend_on_the_generator_alone() -> None:
    args = Ssim(), images(30), images(64)
    first = unrelated_pairs(*args, generator=generator(1))
    assert first == unrelated_pairs(*args, generator=generator(1))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 20, 48)])
def test_the_ladder_shows_what_it_says(shape: tuple[int, int, int]) -> None:
    image = shipped_images(3, shape)[1]
    rungs = picture_ladder(image, generator=generator())
    assert [r.target for r in rungs] == list(LADDER)
    for rung in rungs:
        measured = Ssim().score(image[None], rung.image[None])[0].value
        assert rung.ssim == measured
        assert rung.ssim == pytest.approx(rung.target, abs=0.05)
        assert 0 <= float(rung.image.min()) <= float(rung.image.max()) <= 1


def test_no_ladder_where_ssim_is_not_defined() -> None:
    assert picture_ladder(torch.rand(3, 10, 40), generator=generator()) == []


@pytest.mark.parametrize(("size", "window"), [(3, 3), (4, 3), (8, 7), (10, 9)])
def test_small_images_have_a_smaller_window_and_say_so(size: int, window: int) -> None:
    """Hard case 7: a usable score, no crash, no padding in silence."""
    a, b = torch.rand(2, 1, 3, size, 40)
    (same,) = Ssim().score(a, a)
    (other,) = Ssim().score(a, b)
    assert same.value == pytest.approx(1)
    assert other.value is not None
    assert other.value < 0.5
    assert same.note == other.note == f"window {window} instead of 11"


@pytest.mark.parametrize("size", [1, 2])
def test_below_three_pixels_there_is_no_ssim(size: int) -> None:
    (score,) = Ssim().score(torch.rand(1, 3, size, 40), torch.rand(1, 3, size, 40))
    assert score.value is None
    assert "not defined" in score.note


def test_usual_images_have_nothing_to_say() -> None:
    for size in (11, 16, 161):
        a = torch.rand(1, 3, size, size)
        assert Ssim().score(a, a)[0].note == ""


def test_re_identification() -> None:
    truth = images(10)
    metric = ReIdentification()
    assert metric.score(truth, truth * 0.9)[0].value == 1.0
    assert metric.score(truth, truth.roll(1, 0))[0].value == 0.0
    half = torch.cat([truth[:5], truth[5:].roll(1, 0)])
    assert metric.score(truth, half)[0].value == 0.5
    assert metric.score(truth[:1], truth[:1])[0].value is None


def test_re_identification_does_not_reward_a_guess_for_all() -> None:
    """One grey picture is nearest to one original at most."""
    truth = images(10)
    grey = torch.full_like(truth, 0.5)
    value = ReIdentification().score(truth, grey)[0].value
    assert value is not None
    assert value <= 0.1
    twins = truth[:1].expand(4, -1, -1, -1)
    assert ReIdentification().score(twins, twins)[0].value == 1.0
