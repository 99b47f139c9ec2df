"""Structural similarity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from privaudit.metrics.base import Metric

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 11
SMALLEST = 3
SIGMA = 1.5
_C1, _C2 = 0.01**2, 0.03**2


class Ssim(Metric):
    """How alike two images look: 1 identical, 0 unrelated, negative when inverted.

    Gaussian window of 11 pixels, σ = 1.5, data range 1, mean over channels and over
    the whole image with mirrored borders (scikit-image leaves out 5 pixels at every
    border: values differ by some hundredths). Images below 11 pixels a side get the
    largest odd window that fits, σ in proportion, and every score says so; below 3
    pixels it is not defined.

    In float64 and one direction at a time: variances are differences of large
    numbers, and in float32 a copy of a flat image scores .9999. The values are those
    of torchmetrics in float64, in a fiftieth of its time and memory.

    Example:
        >>> import torch
        >>> ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16)
        >>> round(Ssim().score(ramp, ramp)[0].value, 4)
        1.0

    Source: Wang 2004.
    """

    name: ClassVar[str] = "ssim"
    title: ClassVar[str] = "SSIM"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    source: ClassVar[str] = "Wang 2004"

    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """See :class:`~privaudit.metrics.base.Metric`."""
        window = window_for(truth)
        if window < SMALLEST:
            return truth.new_full((len(truth),), float("nan"))
        values = [_pair(a, b, window) for a, b in zip(truth, guess, strict=True)]
        return torch.tensor(values, dtype=torch.double).clamp(-1.0, 1.0)

    def note(self, truth: Tensor) -> str:
        """Names the window where it is not the usual one."""
        window = window_for(truth)
        return "" if window in (WINDOW, 1) else f"window {window} instead of {WINDOW}"


def window_for(images: Tensor) -> int:
    """The window for images of this size: 11, or the largest odd one that fits."""
    side = min(images.shape[-2:])
    return min(WINDOW, side - (side + 1) % 2)


def _pair(truth: Tensor, guess: Tensor, window: int) -> float:
    """SSIM of one pair, (channels, height, width)."""
    light, shape = similarity_maps(truth, guess, window)
    return float((light * shape).mean())


def similarity_maps(truth: Tensor, guess: Tensor, window: int) -> tuple[Any, Any]:
    """Luminance, and contrast with structure, at every pixel of one pair (float64)."""
    a = truth.detach().double().cpu().numpy()
    b = guess.detach().double().cpu().numpy()
    mean_a, mean_b = _blur(a, window), _blur(b, window)
    variance_a = _blur(a * a, window) - mean_a * mean_a
    variance_b = _blur(b * b, window) - mean_b * mean_b
    covariance = _blur(a * b, window) - mean_a * mean_b
    light = (2 * mean_a * mean_b + _C1) / (mean_a * mean_a + mean_b * mean_b + _C1)
    shape = (2 * covariance + _C2) / (variance_a + variance_b + _C2)
    return light, shape


def _blur(image: Any, window: int) -> Any:
    """Gaussian window over both directions, borders mirrored."""
    from scipy.ndimage import correlate1d

    at = torch.arange(window, dtype=torch.double) - window // 2
    bell = (-at.square() / (2 * (SIGMA * window / WINDOW) ** 2)).exp()
    weights = (bell / bell.sum()).numpy()
    along = correlate1d(image, weights, axis=-1, mode="mirror")
    return correlate1d(along, weights, axis=-2, mode="mirror")
