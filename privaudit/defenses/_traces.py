"""What shows of defenses in features: statistics that detections are made of."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from privaudit.defenses.base import FeatureEvidence
from privaudit.types import FeatureLayout

_AXES = {"tokens": -1, "nhwc": -1, "nchw": 1, "vector": -1}
_SAME = 1e-5
"""Share of the size by which rounding may tell two equal values apart."""
_LEVELS = 2**16
_OFF_LATTICE = 0.05
"""Mean distance to the nearest level, in steps: .25 where there is no lattice."""


def ramp(value: float, half: float) -> float:
    """0 at 0, .5 at ``half``, 1 at twice that: a statistic as a confidence."""
    return min(1.0, max(0.0, value / (2 * half)))


def patches(features: Tensor, layout: FeatureLayout) -> Tensor:
    """(images, patch tokens, channels)."""
    return features[:, layout.prefix_tokens :]


def empty_tokens(seen: FeatureEvidence) -> float:
    """Share of the patch tokens that are zero, beyond those of the reference."""
    if seen.layout.kind != "tokens":
        return 0.0
    shares = [
        float((patches(x, seen.layout) == 0).all(-1).float().mean())
        for x in (seen.sent, seen.reference)
    ]
    return max(0.0, shares[0] - shares[1])


def disorder(seen: FeatureEvidence) -> float | None:
    """How far tokens come in another order the second time: 0 none, 1 at random.

    A token's nearest one of the second time tells where it went. Sorted by that, half
    of all neighbours are in the wrong order after a shuffle, none where some tokens
    were left out.

    Returns:
        None without a second time, or where no token is found again.
    """
    if seen.again is None or seen.layout.kind != "tokens":
        return None
    wrong = pairs = 0
    for one, other in zip(
        patches(seen.sent, seen.layout), patches(seen.again, seen.layout), strict=True
    ):
        one, other = one[one.any(-1)], other[other.any(-1)]
        if len(one) < 2 or len(other) < 2:
            continue
        gaps = torch.cdist(one.double(), other.double())
        nearest = gaps.argmin(1)
        # A token that is found again is much nearer than any other one.
        second = gaps.topk(2, 1, largest=False).values
        found = second[:, 0] < 0.5 * second[:, 1].clamp_min(1e-30)
        places = nearest[found]
        steps = places.diff()
        wrong += int((steps < 0).sum())
        pairs += len(steps)
    return None if pairs < 4 else min(1.0, 2 * wrong / pairs)


def misplaced(seen: FeatureEvidence) -> float | None:
    """How much less a token's place tells than in the reference: 0 as much, 1 nothing.

    A token's place is guessed by the mean token of each place of the reference.

    Returns:
        None where places do not show in the reference either.
    """
    if seen.layout.kind != "tokens":
        return None
    theirs = patches(seen.sent, seen.layout).double()
    own = patches(seen.reference, seen.layout).double()
    if theirs.shape[1:] != own.shape[1:] or len(own) < 8:
        return None
    count, half = own.shape[1], len(own) // 2
    known = _found_places(own[half:], own[:half].mean(0))
    shown = _found_places(theirs, own.mean(0))
    chance = 1 / count
    if known < 4 * chance:
        return None
    return min(1.0, max(0.0, 1 - (shown - chance) / (known - chance)))


def _found_places(tokens: Tensor, means: Tensor) -> float:
    """Share of tokens, zero ones left out, that are nearest to their place's mean."""
    there = tokens.any(-1)
    right = torch.cdist(tokens, means.expand(len(tokens), -1, -1)).argmin(-1)
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return float((right == places)[there].float().mean()) if bool(there.any()) else 0.0


@dataclass(frozen=True)
class Difference:
    """How two sendings of the same images differ.

    Attributes:
        noise: Standard deviation of noise in one of them, over the root mean square
            of the signal.
        differing: Share of the values that differ.
        zeroed: Share of the values that are zero in one of them only.
        kurtosis: Of the differences: 3 for normal noise, 4.5 for Laplace.
    """

    noise: float
    differing: float
    zeroed: float
    kurtosis: float


def difference(seen: FeatureEvidence) -> Difference | None:
    """Sent and sent again, tokens put into one order where that changed."""
    if seen.again is None:
        return None
    one, other = seen.sent.double(), seen.again.double()
    if (disorder(seen) or 0.0) > 0.25:
        other = _matched(one, other, seen.layout)
    # Image by image: each has noise of its own size, and a mixture of sizes has
    # heavier tails than any of them.
    found = []
    for mine, theirs in zip(one, other, strict=True):
        if seen.layout.kind == "tokens":
            both = mine.any(-1) & theirs.any(-1)
            mine, theirs = mine[both], theirs[both]
        found.append(apart(mine, theirs))
    means = (math.fsum(v) / len(found) for v in zip(*map(astuple, found), strict=True))
    return Difference(*means)


def _matched(one: Tensor, other: Tensor, layout: FeatureLayout) -> Tensor:
    """The second sending with each token where its nearest one is in the first."""
    skip = layout.prefix_tokens
    nearest = torch.cdist(one[:, skip:], other[:, skip:]).argmin(-1)
    rows = torch.arange(len(one), device=one.device)[:, None]
    return torch.cat([other[:, :skip], other[:, skip:][rows, nearest]], 1)


def apart(one: Tensor, other: Tensor) -> Difference:
    """Two sendings, value by value, of any shape."""
    one, other = one.double().flatten(), other.double().flatten()
    if one.numel() == 0:
        return Difference(0.0, 0.0, 0.0, 3.0)
    size = float(one.square().mean().sqrt())
    gap = one - other
    alone = (one == 0) != (other == 0)
    differs = gap.abs() > _SAME * max(size, 1e-30)
    moved = gap[differs & ~alone]
    spread = float(gap[~alone].square().mean().sqrt()) if bool((~alone).any()) else 0.0
    std = spread / math.sqrt(2)
    signal = math.sqrt(max(size**2 - std**2, 1e-30))
    fourth = float(moved.pow(4).mean()) if moved.numel() else 0.0
    second = float(moved.square().mean()) if moved.numel() else 1.0
    return Difference(
        noise=std / signal,
        differing=float((differs & ~alone).double().mean()),
        zeroed=float(alone.double().mean()),
        kurtosis=fourth / max(second**2, 1e-300),
    )


def silent_channels(seen: FeatureEvidence) -> tuple[float, float]:
    """Share of an image's channels far below what the reference has in them.

    Returns:
        That share, the mean over images, and the same of one half of the reference
        against the other: what shows without a defense.
    """
    theirs = _channel_sizes(seen.sent, seen.layout)
    own = _channel_sizes(seen.reference, seen.layout)
    if theirs.shape[1:] != own.shape[1:] or len(own) < 8:
        return 0.0, 0.0
    half = len(own) // 2
    return _below(theirs, own), _below(own[half:], own[:half])


def _channel_sizes(features: Tensor, layout: FeatureLayout) -> Tensor:
    """(images, channels), mean magnitudes, as shares of each image's own median."""
    axis = _AXES[layout.kind]
    moved = features.double().movedim(axis, 1).flatten(2 if features.dim() > 2 else 1)
    sizes = moved.abs() if moved.dim() == 2 else moved.abs().mean(-1)
    return sizes / sizes.median(1, keepdim=True).values.clamp_min(1e-30)


def _below(sizes: Tensor, reference: Tensor) -> float:
    """Share of channels at less than a quarter of the reference's lower end."""
    low = reference.quantile(0.05, dim=0)
    usual = low > 0.05 * reference.median(0).values.clamp_min(1e-30)
    if not bool(usual.any()):
        return 0.0
    return float((sizes[:, usual] < 0.25 * low[usual]).double().mean())


def zeros(seen: FeatureEvidence) -> tuple[float, float]:
    """Share of exact zeros beyond the reference's, and how much images vary in it."""
    theirs, own = (
        (x == 0).double().flatten(1).mean(1) for x in (seen.sent, seen.reference)
    )
    spread = float(own.std()) if len(own) > 1 else 0.0
    return float(theirs.mean() - own.mean()), spread


def lattice_bits(values: Tensor) -> float | None:
    """Bits of the evenly spaced levels that ``values`` sit on; None: on none.

    Args:
        values: Of one tensor; zeros that stand for nothing left out.
    """
    flat = values.detach().flatten()
    some = flat[:: max(1, len(flat) // _LEVELS)]  # enough to see every level
    levels = torch.unique(some.double())
    if len(levels) < 3 or len(levels) > min(_LEVELS, len(some) * 0.6):
        return None
    span = float(levels[-1] - levels[0])
    steps = levels.diff()
    coarse = float(steps.min())
    if coarse <= span / (4 * _LEVELS):
        return None
    # Gaps are small multiples of the step, so that rounding of the step adds up to
    # nothing; the step itself then follows from the whole span.
    places = (steps / coarse).round().cumsum(0)
    count = float(places[-1]) + 1
    if count > _LEVELS * 1.01:
        return None
    step = span / float(places[-1])
    off = float((levels[1:] - levels[0] - places * step).abs().mean()) / step
    return None if off > _OFF_LATTICE else math.log2(count)
