"""What a score means: unrelated pairs, and a ladder of pictures at known scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from privaudit.metrics.base import Metric
from privaudit.metrics.ssim import WINDOW, Ssim
from privaudit.verdict import UnrelatedPairs

MIN_PAIRS = 20
MAX_PAIRS = 64
LADDER = (0.3, 0.5, 0.7, 0.9)


def unrelated_pairs(
    metric: Metric, images: Tensor, others: Tensor, *, generator: torch.Generator
) -> UnrelatedPairs:
    """Score pairs of images that have nothing to do with each other.

    Args:
        metric: One that scores single images.
        images: The user's, (batch, channels, height, width) in [0, 1].
        others: Shipped ones of the same shape, used where the user's own images
            give fewer than 20 pairs. Neighbours never show the same scene.
        generator: Picks the pairs.
    """
    left, right = _pairs(images, others, generator)
    scores = metric.score(left, right)
    values = torch.tensor([s.value for s in scores if s.value is not None])
    if not len(values):
        return UnrelatedPairs(metric=metric.name, pairs=0, p95=0.0)
    p95 = float(values.quantile(0.05 if metric.lower_is_leakier else 0.95))
    return UnrelatedPairs(metric=metric.name, pairs=len(values), p95=p95)


def _pairs(
    images: Tensor, others: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    chosen = [
        (images[i], images[j])
        for i in range(len(images))
        for j in range(i + 1, len(images))
        if not torch.equal(images[i], images[j])
    ]
    if len(chosen) < MIN_PAIRS:
        shipped = [(others[k], others[k + 1]) for k in range(0, len(others) - 1, 2)]
        mixed = [(a, b) for a in images for b in others]
        chosen += (mixed + shipped)[: MAX_PAIRS - len(chosen)]
    order = torch.randperm(len(chosen), generator=generator)[:MAX_PAIRS].tolist()
    picked = [chosen[i] for i in order]
    return torch.stack([a for a, _ in picked]), torch.stack([b for _, b in picked])


@dataclass(frozen=True, eq=False)
class Rung:
    """A degraded copy of an image and the SSIM measured on it."""

    target: float
    ssim: float
    image: Tensor


def picture_ladder(image: Tensor, *, generator: torch.Generator) -> list[Rung]:
    """What SSIM .3, .5, .7 and .9 look like on one image, by blur and noise.

    Args:
        image: (channels, height, width) in [0, 1].
        generator: Source of the noise.

    Returns:
        Rungs in rising order; empty where SSIM is not defined.
    """
    if min(image.shape[-2:]) < WINDOW:
        return []
    noise = torch.randn(image.shape, generator=generator).to(image.device)
    rungs = []
    for target in LADDER:
        amount = _amount_for(image, noise, target)
        if amount is None:
            return []
        shown = _degrade(image, noise, amount)
        rungs.append(Rung(target, _ssim(image, shown) or 0.0, shown))
    return rungs


def _amount_for(image: Tensor, noise: Tensor, target: float) -> float | None:
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        value = _ssim(image, _degrade(image, noise, middle))
        if value is None:
            return None
        low, high = (middle, high) if value > target else (low, middle)
    return (low + high) / 2


def _degrade(image: Tensor, noise: Tensor, amount: float) -> Tensor:
    """Blur and noise together, from none (0) to nothing but grey noise (1)."""
    side = min(image.shape[-2:])
    sigma = max(1e-3, amount * side / 12)
    radius = max(1, min(int(3 * sigma), side // 2 - 1))
    at = torch.arange(-radius, radius + 1, dtype=image.dtype, device=image.device)
    kernel = (-at.square() / (2 * sigma**2)).exp()
    kernel = (kernel / kernel.sum()).expand(len(image), 1, 1, -1)
    padded = F.pad(image[None], (radius,) * 4, mode="reflect")
    blurred = F.conv2d(padded, kernel, groups=len(image))
    blurred = F.conv2d(blurred, kernel.transpose(2, 3), groups=len(image))[0]
    return (blurred + 0.25 * amount**2 * noise).clamp(0, 1)


def _ssim(a: Tensor, b: Tensor) -> float | None:
    return Ssim().score(a[None], b[None])[0].value
