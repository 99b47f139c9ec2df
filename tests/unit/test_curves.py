"""The attack success rate over the threshold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.errors import ConfigError
from privaudit.metrics import Lpips, Psnr, Ssim
from privaudit.metrics._curves import (
    GRID,
    NO_RECONSTRUCTION,
    SuccessCurve,
    success_rate,
)
from privaudit.verdict import Score


def scores(*values: float) -> list[Score]:
    return [Score(value=v) for v in values]


def test_similarities_are_hits_above_the_threshold() -> None:
    curve = success_rate(Ssim(), scores(0.2, 0.5, 0.9), [0.1, 0.5, 0.95])
    assert curve.rates == pytest.approx([1, 1 / 3, 0])
    assert (curve.images, curve.unscored, curve.lower_is_leakier) == (3, 0, False)


def test_distances_are_hits_below_it() -> None:
    curve = success_rate(Lpips(), scores(0.05, 0.1, 0.7), [0.1, 0.3])
    assert curve.rates == pytest.approx([1 / 3, 2 / 3])
    assert curve.lower_is_leakier


def test_identical_is_a_hit_and_no_reconstruction_a_miss() -> None:
    given = [
        Score(value=None, note="identical"),
        Score(value=None, note=NO_RECONSTRUCTION),
        Score(value=None, note="psnr is not defined here"),
        Score(value=20.0),
    ]
    curve = success_rate(Psnr(), given, [10, 1000])
    assert curve.rates == pytest.approx([2 / 3, 1 / 3])
    assert (curve.images, curve.unscored) == (3, 1)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_similarity_curves_never_rise(values: list[float]) -> None:
    curve = success_rate(Ssim(), scores(*values))
    assert curve.thresholds == list(GRID)
    assert curve.rates == sorted(curve.rates, reverse=True)
    assert all(0 <= rate <= 1 for rate in curve.rates)
    text = json.dumps(curve.model_dump())
    assert SuccessCurve.model_validate_json(text) == curve


@pytest.mark.parametrize("wrong", [[], [0.5, 0.5], [0.5, 0.2], [float("nan"), 1]])
def test_thresholds_rise(wrong: list[float]) -> None:
    with pytest.raises(ConfigError, match="thresholds: expected at least one value"):
        success_rate(Ssim(), scores(0.5), wrong)


def test_nothing_to_judge_is_no_rate_of_0() -> None:
    unavailable = [Score(value=None, note="lpips is not available: …")]
    with pytest.raises(ConfigError, match=r"at least one image with a score.*lpips is"):
        success_rate(Lpips(), unavailable)
    with pytest.raises(ConfigError, match=r"success rate of ssim.*Score the attack"):
        success_rate(Ssim(), [])
