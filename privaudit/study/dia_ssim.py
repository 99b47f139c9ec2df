"""SSIM as the tables of Scheliga 2023 seem to have it, for comparing with them only.

Their SSIM and PSNR do not fit together under the usual definition: reconstructions with
the PSNR of the tables score up to .15 lower. They do under that of scikit-image before
0.21 for images in float: windows of 7×7, all alike, and a data range of 2, that of
values from -1 to 1. A range of 2 for pixels in [0, 1] makes the constants four times as
large, and everything looks more alike than it is. See docs/decisions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

_WINDOW = 7
_RANGE = 2.0


def ssim_range_2(truth: Tensor, guess: Tensor) -> list[float]:
    """One value per pair, windows that reach over the border left out.

    Args:
        truth: (batch, channels, height, width) in [0, 1], at least 7 pixels a side.
        guess: The same shape.
    """
    pairs = zip(truth.double().cpu().numpy(), guess.double().cpu().numpy(), strict=True)
    return [_pair(a, b) for a, b in pairs]


def _pair(a: Any, b: Any) -> float:
    mean_a, mean_b = _mean(a), _mean(b)
    # Of a sample, as scikit-image has it: 49 pixels count as 48.
    unbiased = _WINDOW**2 / (_WINDOW**2 - 1)
    spread_a = unbiased * (_mean(a * a) - mean_a * mean_a)
    spread_b = unbiased * (_mean(b * b) - mean_b * mean_b)
    both = unbiased * (_mean(a * b) - mean_a * mean_b)
    c1, c2 = (0.01 * _RANGE) ** 2, (0.03 * _RANGE) ** 2
    light = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    shape = (2 * both + c2) / (spread_a + spread_b + c2)
    edge = _WINDOW // 2
    return float((light * shape)[:, edge:-edge, edge:-edge].mean())


def _mean(image: Any) -> Any:
    """Over the window around each pixel, (channels, height, width)."""
    from scipy.ndimage import uniform_filter

    return uniform_filter(image, size=(1, _WINDOW, _WINDOW))
