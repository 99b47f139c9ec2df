"""Ranges and normalisation (hard cases 6 and 9)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from privaudit import Auditor, Client
from privaudit._pixels import Normalisation, to_pixels, to_png, to_unit
from privaudit.errors import ConfigError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@settings(max_examples=40, deadline=None)
@given(
    mean=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    std=st.lists(st.floats(0.01, 2), min_size=3, max_size=3),
)
def test_there_and_back(mean: list[float], std: list[float]) -> None:
    normal = Normalisation.of(mean, std)
    assert torch.allclose(normal.invert(normal.apply(IMAGES)), IMAGES, atol=1e-5)


@pytest.mark.parametrize(
    "kind", [float, list, tuple, np.float32, np.array, torch.tensor]
)
def test_numbers_of_many_kinds(kind: Any) -> None:
    value = kind([0.5]) if kind in (list, tuple, np.array, torch.tensor) else kind(0.5)
    assert Normalisation.of(value, value) == Normalisation.of(0.5, 0.5) or (
        Normalisation.of(value, value).mean == (0.5,)
    )
    assert Normalisation.of(torch.tensor(0.5), 0.25).mean == (0.5,)


@pytest.mark.parametrize(
    ("mean", "std", "match"),
    [
        (0.5, None, "Auditor.std: expected mean and std together"),
        (None, 0.5, "Auditor.mean: expected mean and std together"),
        (MEAN, 0.5, "expected 3 values as in mean, got 1"),
        (0.5, 0.0, "positive values"),
        (0.5, -1.0, "positive values"),
        (0.5, float("nan"), "positive values"),
        (float("nan"), 0.5, r"in \[0, 1\] units"),
        (float("inf"), 0.5, r"in \[0, 1\] units"),
        ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), "Divide both by 255"),
    ],
)
def test_what_is_no_normalisation(mean: Any, std: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Normalisation.of(mean, std)


def test_three_values_for_one_channel_are_refused() -> None:
    """torchvision turns (1, 8, 8) into (3, 8, 8) without a word."""
    with pytest.raises(ConfigError, match=r"expected 1 or 1 values .* got 3"):
        Normalisation.of(MEAN, STD).check_channels(1)
    Normalisation.of(MEAN, STD).check_channels(3)
    Normalisation.of(0.5, 0.5).check_channels(7)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 16), nn.GELU(), nn.Linear(16, 10))


def test_normalised_input_without_mean_and_std_is_named() -> None:
    normalised = (IMAGES - 0.45) / 0.22
    low, high = float(normalised.min()), float(normalised.max())
    match = rf"input range \[{low:.1f}, {high:.1f}\] looks normalised.*mean=0, std=1"
    with pytest.raises(ConfigError, match=match):
        Auditor(perceptron()).audit((normalised, [1, 2]))


def test_float_pixels_up_to_255_are_named() -> None:
    with pytest.raises(ConfigError, match="Divide by the largest value"):
        Auditor(perceptron()).audit((IMAGES * 255, [1, 2]))


def audit(images: Tensor, mean: Any, std: Any) -> tuple[Tensor, list[str], float]:
    auditor = Auditor(
        perceptron(), mean=mean, std=std, client=Client(batch_size=1),
        attacks=["closed_form"],
    )  # fmt: skip
    result = auditor.audit((images, [1, 2]))
    notes = [f.text for f in result.record.inventory.findings if f.code == "input-note"]
    assert result.attacks["closed_form"].state == "exact"
    return (
        result.attacks["closed_form"].reconstructions,
        notes,
        result.worst["ssim"].value,
    )


def test_normalised_input_with_mean_and_std_is_mapped_back_and_said() -> None:
    normal = Normalisation.of(MEAN, STD)
    found, notes, score = audit(normal.apply(IMAGES), MEAN, STD)
    assert torch.allclose(found, IMAGES, atol=1e-3)
    assert score > 0.999
    assert any("mapped back to pixels" in n for n in notes)
    again, silent, _ = audit(IMAGES, MEAN, STD)
    assert torch.allclose(again, found, atol=1e-3)
    assert silent == []


def test_mean_0_std_1_on_purpose() -> None:
    odd = (IMAGES - 0.45) / 0.22
    found, notes, score = audit(odd, 0, 1)
    low, high = odd.min(), odd.max()
    assert torch.allclose(found, (odd - low) / (high - low), atol=1e-3)
    assert score > 0.999
    assert any("scored as if that were [0, 1]" in n for n in notes)


def test_input_that_the_given_mean_and_std_do_not_explain() -> None:
    with pytest.raises(ConfigError, match="looks normalised"):
        Auditor(perceptron(), mean=MEAN, std=STD).audit((IMAGES * 12 - 6, [1, 2]))


def test_rounding_at_the_ends_is_no_other_range() -> None:
    pixels, _, notes = to_pixels(IMAGES * (1 + 5e-5), Normalisation())
    assert float(pixels.max()) <= 1
    assert notes == []


@pytest.mark.parametrize(
    ("images", "declared", "match"),
    [
        (IMAGES, (0, 255), "range 255 but min .* max"),
        (IMAGES * 255, (0, 1), "values over the range 0 to 1"),
        (IMAGES * 2 - 1, (0, 1), "values over the range"),
        (IMAGES, (1, 0), "low < high"),
        (IMAGES, (0, 0), "low < high"),
        (IMAGES * float("nan"), (0, 1), "image 0: expected finite"),
    ],
)
def test_a_declared_range_must_fit(
    images: Tensor, declared: tuple[float, float], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        to_unit(images, declared)


def test_bytes_are_bytes_however_dark() -> None:
    dark = torch.ones(1, 3, 4, 4, dtype=torch.uint8)
    assert torch.allclose(to_unit(dark, (0, 255)), torch.full((1, 3, 4, 4), 1 / 255))
    black = torch.zeros(1, 3, 4, 4)
    assert torch.equal(to_unit(black, (0, 255)), black)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_any_number_of_channels_has_a_picture(channels: int) -> None:
    image = torch.rand(channels, 5, 9)
    with Image.open(io.BytesIO(to_png(image))) as shown:
        assert shown.size == (9, 5)
        assert shown.mode == "RGB"
