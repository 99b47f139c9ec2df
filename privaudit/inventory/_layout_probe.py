"""Where features answer when a small square of the image changes.

Each square moves the features most at the positions that look at it. A layout foretells
which these are; the layout that foretells it best is the right one, and one that reads
channels as places foretells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privaudit.types import FeatureLayout

_ANCHORS = 3
_SHARE = 8
_BLURS = (0.0, 0.1, 0.2, 0.4)
"""How far a position of a map may see, as a share of the image."""


def probe_images(image: Tensor) -> Tensor:
    """An image, then the same image with one square changed, nine times.

    Args:
        image: (channels, height, width).
    """
    squares = _squares(*image.shape[1:])
    return torch.stack([image, *(_inverted(image, square) for square in squares)])


def scores(
    sent: Tensor, size: tuple[int, int], layouts: Sequence[FeatureLayout]
) -> list[float]:
    """How well each layout foretells what moves: correlation, 0 to 1.

    Args:
        sent: (10, …) features of :func:`probe_images`.
        size: (height, width) of the image in pixels.
        layouts: Which to compare.
    """
    moved = sent[1:].double() - sent[:1].double()
    if not bool(torch.isfinite(moved).all()):
        return [0.0] * len(layouts)
    return [_score(moved, _squares(*size), layout, size) for layout in layouts]


Square = tuple[int, int, int, int]
"""First and last-plus-one row, first and last-plus-one column."""


def _squares(height: int, width: int) -> list[Square]:
    """An even grid of squares with one in each corner."""
    side = max(1, min(height, width) // _SHARE)
    tops = torch.linspace(0, height - side, _ANCHORS).round().int().tolist()
    lefts = torch.linspace(0, width - side, _ANCHORS).round().int().tolist()
    return [(t, t + side, x, x + side) for t in tops for x in lefts]


def _inverted(image: Tensor, square: Square) -> Tensor:
    """The image with black and white exchanged in the square."""
    top, bottom, left, right = square
    low, high = image.min(), image.max()
    changed = image.clone()
    part = changed[:, top:bottom, left:right]
    grey = (high - low) < 1e-3
    part.copy_(part + 0.5 if grey else low + high - part)
    return changed


def _score(
    moved: Tensor, squares: Sequence[Square], layout: FeatureLayout, size: Sequence[int]
) -> float:
    """Correlation over squares of what moved and what the layout foretells."""
    if layout.grid is None:
        return 0.0
    seen = _centred(_profile(moved, layout))
    blurs = (0.0,) if layout.kind == "tokens" else _BLURS
    found = [0.0]
    for blur in blurs:
        wanted = torch.zeros_like(seen)
        for row, square in enumerate(squares):
            wanted[row, layout.prefix_tokens :] = _overlap(
                square, layout.grid, size, blur=blur
            )
        wanted = _centred(wanted)
        scale = float(seen.norm() * wanted.norm())
        found += [float((seen * wanted).sum()) / scale] if scale > 0 else []
    return max(found)


def _centred(profile: Tensor) -> Tensor:
    """Squares differ in how much they change; some tokens answer to all of them."""
    shares = profile / profile.sum(1, keepdim=True).clamp_min(1e-300)
    return shares - shares.mean(0)


def _profile(moved: Tensor, layout: FeatureLayout) -> Tensor:
    """(squares, positions): how much each position moved, channels taken together."""
    axis = {"tokens": 2, "nchw": 1, "nhwc": 3, "vector": 1}[layout.kind]
    profile: Tensor = moved.norm(dim=axis)
    return profile.flatten(1)


def _overlap(
    square: Square, grid: tuple[int, int], size: Sequence[int], *, blur: float
) -> Tensor:
    """Share of the square that falls on each position, row by row."""
    top, bottom, left, right = square
    rows = _axis_overlap(top, bottom, grid[0], size[0], blur)
    columns = _axis_overlap(left, right, grid[1], size[1], blur)
    return (rows[:, None] * columns[None, :]).flatten()


def _axis_overlap(start: int, end: int, count: int, length: int, blur: float) -> Tensor:
    edges = torch.linspace(0, length, count + 1, dtype=torch.float64)
    if blur:  # a position sees far around itself
        away = ((edges[1:] + edges[:-1] - start - end) / (2 * length * blur)).square()
        return (-away / 2).exp()
    shared = edges[1:].clamp(max=end) - edges[:-1].clamp(min=start)
    return shared.clamp_min(0)
