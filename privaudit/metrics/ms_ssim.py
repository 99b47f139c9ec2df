"""Structural similarity over several scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from privaudit.metrics.base import Metric
from privaudit.metrics.ssim import SMALLEST, WINDOW, similarity_maps, window_for

if TYPE_CHECKING:
    from torch import Tensor

BETAS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Exponent of each scale, the finest first; their sum is 1.0001, as published."""
INSIDE = slice(WINDOW // 2, -(WINDOW // 2))


class MsSsim(Metric):
    """How alike two images look from near and from afar: 1 identical, 0 unrelated.

    Contrast and structure at every scale, luminance at the coarsest, each to the power
    of its weight; scales halve by averaging. A scale without similarity counts as 0.
    Window as in ``ssim``; borders as in torchmetrics: mirrored at the coarsest scale,
    5 pixels left out at the others.

    Five scales need 176 pixels a side. Smaller images get as many scales as the window
    of 11 pixels fits into, their weights scaled up to a sum of 1, and every score says
    how many: values of images of different sizes do not compare. Below 22 pixels it is
    ``ssim``, never negative.

    Example:
        >>> import torch
        >>> ramp = torch.linspace(0, 1, 64).expand(1, 1, 64, 64)
        >>> MsSsim().score(ramp, ramp)[0].note
        '3 scales instead of 5'
        >>> round(MsSsim().score(ramp, ramp)[0].value, 4)
        1.0

    Source: Wang 2003, eq. 7; differs in the scales of small images.
    """

    name: ClassVar[str] = "ms_ssim"
    title: ClassVar[str] = "MS-SSIM"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    source: ClassVar[str] = "Wang 2003"

    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """See :class:`~privaudit.metrics.base.Metric`."""
        if window_for(truth) < SMALLEST:
            return truth.new_full((len(truth),), float("nan"))
        count = scales_for(truth)
        values = [_pair(a, b, count) for a, b in zip(truth, guess, strict=True)]
        return torch.tensor(values, dtype=torch.double).clamp(0.0, 1.0)

    def note(self, truth: Tensor) -> str:
        """Names the scales, and the window where it is not the usual one."""
        window, count = window_for(truth), scales_for(truth)
        scales = f"{count} scale{'s' * (count > 1)} instead of {len(BETAS)}"
        small = f", window {window} instead of {WINDOW}" if window < WINDOW else ""
        return "" if count == len(BETAS) else scales + small


def scales_for(images: Tensor) -> int:
    """How many scales still hold a whole window; 1 at least."""
    side = min(images.shape[-2:])
    return max(1, sum(side >> scale >= WINDOW for scale in range(len(BETAS))))


def betas_of(count: int) -> list[float]:
    """The exponents of ``count`` scales: as published, or scaled up to a sum of 1."""
    total = 1.0 if count == len(BETAS) else sum(BETAS[:count])
    return [beta / total for beta in BETAS[:count]]


def _pair(truth: Tensor, guess: Tensor, count: int) -> float:
    """MS-SSIM of one pair, (channels, height, width)."""
    a, b = truth.double()[None], guess.double()[None]
    window, product = window_for(a), 1.0
    for scale, beta in enumerate(betas_of(count)):
        light, shape = similarity_maps(a[0], b[0], window)
        last = scale == count - 1
        counted = light * shape if last else shape[:, INSIDE, INSIDE]
        mean = max(float(counted.mean()), 0.0)
        product *= mean**beta
        if not last:
            a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
    return product
