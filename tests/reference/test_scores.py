"""Metrics against scikit-image, which shares no code with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from skimage.metrics import (
    mean_squared_error,
    peak_signal_noise_ratio,
    structural_similarity,
)
from torch import Tensor

from privaudit._controls import shipped_images
from privaudit._pixels import to_unit
from privaudit.metrics import Mse, Psnr, Ssim
from privaudit.study.dia_ssim import ssim_range_2

SIZES = [(32, 32), (28, 28), (40, 24), (11, 11), (64, 64)]


def pair(
    size: tuple[int, int], channels: int, strength: float
) -> tuple[Tensor, Tensor]:
    truth = shipped_images(3, (channels, *size))[1:2]
    generator = torch.Generator().manual_seed(0)
    apart = strength * torch.randn(truth.shape, generator=generator)
    return truth, (truth + apart).clamp(0, 1)


def array(image: Tensor) -> NDArray[np.float64]:
    return image[0].permute(1, 2, 0).double().numpy()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("strength", [0.01, 0.1, 0.4])
def test_mse_and_psnr(size: tuple[int, int], channels: int, strength: float) -> None:
    truth, guess = pair(size, channels, strength)
    a, b = array(truth), array(guess)
    assert Mse().score(truth, guess)[0].value == pytest.approx(mean_squared_error(a, b))
    expected = peak_signal_noise_ratio(a, b, data_range=1)
    assert Psnr().score(truth, guess)[0].value == pytest.approx(expected)


def reference(truth: Tensor, guess: Tensor, *, mirrored: bool) -> float:
    """SSIM by scikit-image, which leaves out 5 pixels at every border.

    With mirrored borders of 5 pixels it averages over the whole image instead, as
    torchmetrics does.
    """
    sides = [array(truth), array(guess)]
    if mirrored:
        sides = [np.pad(s, ((5, 5), (5, 5), (0, 0)), mode="reflect") for s in sides]
    value = structural_similarity(
        *sides, gaussian_weights=True, sigma=1.5, use_sample_covariance=False,
        data_range=1, channel_axis=2,
    )  # fmt: skip
    return float(value)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("strength", [0.0, 0.01, 0.1, 0.4])
def test_ssim(size: tuple[int, int], channels: int, strength: float) -> None:
    truth, guess = pair(size, channels, strength)
    value = Ssim().score(truth, guess)[0].value
    assert value == pytest.approx(reference(truth, guess, mirrored=True), abs=1e-9)


@pytest.mark.parametrize("size", [(64, 64), (224, 224)])
@pytest.mark.parametrize("strength", [0.01, 0.1, 0.4])
def test_leaving_out_the_borders_changes_ssim_by_less_than_two_hundredths(
    size: tuple[int, int], strength: float
) -> None:
    """What a reader sees who computes SSIM as scikit-image does by default."""
    truth, guess = pair(size, 3, strength)
    value = Ssim().score(truth, guess)[0].value
    assert value == pytest.approx(reference(truth, guess, mirrored=False), abs=0.02)


def test_ssim_of_unrelated_and_inverted_images() -> None:
    images = shipped_images(2, (3, 64, 64))
    a, b = images[:1], images[1:]
    for guess in (b, 1 - a):
        value = Ssim().score(a, guess)[0].value
        assert value == pytest.approx(reference(a, guess, mirrored=True), abs=1e-9)
    inverted = Ssim().score(a, 1 - a)[0].value
    assert inverted is not None
    assert inverted < 0


def test_one_image_has_one_score_whatever_its_range() -> None:
    """Hard case 6: float, uint8 and [-1, 1] copies agree to the rounding of uint8."""
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(2, 3, 64, 64, generator=generator)
    b = (a + 0.1 * torch.randn(a.shape, generator=generator)).clamp(0, 1)
    sides = [
        (a, b),
        tuple(to_unit((x * 255).round().byte(), (0, 255)) for x in (a, b)),
        tuple(to_unit(x * 2 - 1, (-1, 1)) for x in (a, b)),
    ]
    for metric in (Ssim(), Mse(), Psnr()):
        values = [[s.value or math.nan for s in metric.score(*pair)] for pair in sides]
        tolerance = 0.05 if metric.name == "psnr" else 0.005
        for value in values[1:]:
            assert value == pytest.approx(values[0], abs=tolerance)
    assert Ssim().score(a, b)[0].value == pytest.approx(0.945, abs=0.02)


def test_the_papers_ssim_is_that_of_scikit_image_with_a_range_of_two() -> None:
    generator = torch.Generator().manual_seed(3)
    truth = torch.rand(2, 3, 28, 28, generator=generator)
    guess = (truth + 0.2 * torch.randn(truth.shape, generator=generator)).clamp(0, 1)
    expected = [
        structural_similarity(
            a.double().numpy(), b.double().numpy(), channel_axis=0, data_range=2
        )
        for a, b in zip(truth, guess, strict=True)
    ]
    assert ssim_range_2(truth, guess) == pytest.approx(expected, abs=1e-9)
    assert ssim_range_2(truth, truth) == pytest.approx([1.0, 1.0])
