"""What every metric of the registry must do. Not edited for a new metric."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import pkgutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

import privaudit.metrics
from privaudit.errors import ConfigError
from privaudit.metrics import METRICS, Metric

NAMES = sorted(METRICS)
SIZES = st.integers(min_value=1, max_value=24)


@pytest.fixture(params=NAMES)
def metric(request: pytest.FixtureRequest) -> Metric:
    """Every metric in turn, with its defaults."""
    return METRICS[str(request.param)]()


def noise(seed: int, count: int, channels: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, channels, height, width, generator=generator)


def must_run(metric: Metric, images: Tensor) -> None:
    """Skip where it cannot: pretrained ones run on files in tests/unit instead."""
    reason = metric.undefined(images) or metric.unavailable()
    if reason:
        assert metric.score(images, images)[0].note == reason
        pytest.skip(reason)


def test_states_its_facts(metric: Metric) -> None:
    low, high = metric.bounds
    assert low < high
    assert metric.title
    assert metric.source
    assert metric.scope in ("image", "set")
    assert isinstance(metric.lower_is_leakier, bool)
    assert "Source:" in (type(metric).__doc__ or "")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 4),
    channels=st.integers(1, 4),
    height=SIZES,
    width=SIZES,
    kind=st.sampled_from(["noise", "near", "inverted", "black", "binary", "flat"]),
)
def test_stays_within_its_bounds(
    name: str, seed: int, count: int, channels: int, height: int, width: int, kind: str
) -> None:
    truth = noise(seed, count, channels, height, width)
    guess = {
        "noise": lambda: noise(seed + 1, count, channels, height, width),
        "near": lambda: (truth + 1e-6 * (noise(1, *truth.shape) - 0.5)).clamp(0, 1),
        "inverted": lambda: 1 - truth,
        "black": lambda: torch.zeros_like(truth),
        "binary": lambda: truth.round(),
        "flat": lambda: torch.full_like(truth, float(truth.mean())),
    }[kind]()
    metric = METRICS[name]()
    scores = metric.score(truth, guess)
    assert len(scores) == (1 if metric.scope == "set" else count)
    for score in scores:
        if score.value is None:
            assert score.note
            continue
        assert math.isfinite(score.value)
        assert metric.bounds[0] <= score.value <= metric.bounds[1]


@pytest.mark.parametrize("flat", [None, 0.0, 0.3, 1.0])
def test_identical_images_are_the_leakiest(metric: Metric, flat: float | None) -> None:
    images = noise(0, 3, 3, 16, 16)
    if flat is not None:
        images[:] = flat
    must_run(metric, images)
    low, high = metric.bounds
    for score in metric.score(images, images):
        if metric.identical_is_infinite:
            assert score.value is None
            assert score.note == "identical"
        else:
            assert score.value == pytest.approx(
                low if metric.lower_is_leakier else high
            )


def test_a_closer_copy_is_leakier(metric: Metric) -> None:
    if metric.scope == "set":
        pytest.skip("one value for all images: no order of single copies")
    truth, other = noise(0, 1, 3, 16, 16), noise(1, 1, 3, 16, 16)
    must_run(metric, truth)
    near, far = (
        metric.score(truth, torch.lerp(truth, other, t))[0].value for t in (0.05, 0.5)
    )
    assert near is not None
    assert far is not None
    assert (near < far) == metric.lower_is_leakier


def test_a_score_is_that_of_its_own_image(metric: Metric) -> None:
    truth, guess = noise(0, 5, 3, 16, 16), noise(1, 5, 3, 16, 16)
    guess[2] = truth[2]
    if metric.scope == "set":
        order = torch.tensor([3, 1, 4, 0, 2])
        assert metric.score(truth, guess) == metric.score(truth[order], guess[order])
        return
    together = metric.score(truth, guess)
    alone = [metric.score(truth[i : i + 1], guess[i : i + 1])[0] for i in range(5)]
    for a, b in zip(together, alone, strict=True):
        assert a.note == b.note
        assert a.value == pytest.approx(b.value, abs=1e-9)


def test_changes_neither_side(metric: Metric) -> None:
    truth, guess = noise(0, 2, 3, 16, 16), noise(1, 2, 3, 16, 16)
    kept = truth.clone(), guess.clone()
    metric.score(truth, guess)
    assert torch.equal(truth, kept[0])
    assert torch.equal(guess, kept[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_image_is_named_not_scored(metric: Metric, bad: float) -> None:
    truth, guess = noise(0, 3, 3, 16, 16), noise(1, 3, 3, 16, 16)
    guess[1, 0, 0, 0] = bad
    with pytest.raises(ConfigError, match="reconstruction, image 1: expected finite"):
        metric.score(truth, guess)
    with pytest.raises(ConfigError, match="truth, image 1: expected finite"):
        metric.score(guess, truth)


def test_other_ranges_are_refused(metric: Metric) -> None:
    pixels = noise(0, 2, 3, 16, 16)
    for other in ((pixels * 255).byte(), pixels * 2 - 1, pixels * 255, pixels + 0.01):
        other_range = other if other.dtype == torch.uint8 else other.clamp(-1, 255)
        with pytest.raises(ConfigError, match=r"expected float pixels in \[0, 1\]"):
            metric.score(pixels, other_range)
        with pytest.raises(ConfigError, match=r"expected float pixels in \[0, 1\]"):
            metric.score(other_range, pixels)


def test_other_shapes_are_refused(metric: Metric) -> None:
    truth = noise(0, 2, 3, 16, 16)
    for guess in (truth[:1], truth[:, :1], truth[..., :8], truth[0]):
        with pytest.raises(ConfigError, match="metric: expected"):
            metric.score(truth, guess)
    for empty in (truth[:0], truth[0]):
        with pytest.raises(ConfigError, match="at least one image"):
            metric.score(empty, empty)


def test_settings_survive_json_and_are_closed(metric: Metric) -> None:
    text = json.dumps(metric.settings())
    assert type(metric).model_validate(json.loads(text)) == metric
    with pytest.raises(ValidationError, match="not permitted"):
        type(metric).model_validate({"no_such_setting": 1})


@pytest.mark.parametrize(
    "name", [m.name for m in pkgutil.iter_modules(privaudit.metrics.__path__)]
)
def test_the_examples_in_the_docstrings_hold(name: str) -> None:
    module = importlib.import_module(f"privaudit.metrics.{name}")
    ran = doctest.testmod(module)
    assert ran.failed == 0
    if not name.startswith("_") and name != "base":
        assert ran.attempted >= 2, "every metric shows a number"
