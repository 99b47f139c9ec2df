"""Every way to read the axes of features, by their shape alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privaudit.adapters import LayoutHint
from privaudit.types import FeatureLayout

MAX_PREFIX = 16
"""More class and register tokens than any model we know of has."""


def layouts_of(
    shape: Sequence[int], image: tuple[int, int], most: int | None = None
) -> list[FeatureLayout]:
    """All readings of features of this shape; none for fewer than two axes.

    Args:
        shape: (batch, …).
        image: (height, width) of the image in pixels.
        most: Tokens before the patches, at most; None: 16.
    """
    if len(shape) == 2:
        return [FeatureLayout("vector")]
    if len(shape) == 4:
        _, first, second, third = shape
        if second == third == 1:
            return [FeatureLayout("nchw", grid=(1, 1))]
        if first == second == 1:
            return [FeatureLayout("nhwc", grid=(1, 1))]
        return [
            FeatureLayout("nchw", grid=(second, third)),
            FeatureLayout("nhwc", grid=(first, second)),
        ]
    if len(shape) == 3:
        limit = min(max(MAX_PREFIX, most or 0), shape[1] - 1)
        grids = list(_tokens(shape[1], image, limit))
        return grids or [FeatureLayout("tokens")]
    return []


def _tokens(count: int, image: tuple[int, int], limit: int) -> Iterator[FeatureLayout]:
    """Every grid, and every number of tokens before it."""
    for prefix in range(limit + 1):
        patches = count - prefix
        for rows in range(1, min(patches, image[0]) + 1):
            if patches % rows == 0 and patches // rows <= image[1]:
                yield FeatureLayout("tokens", prefix, (rows, patches // rows))


def matches_hint(
    layout: FeatureLayout, hint: LayoutHint, image: tuple[int, int]
) -> bool:
    """Whether a library's word and a reading of the shape agree."""
    if layout.kind not in hint.kinds:
        return False
    if hint.prefixes and layout.prefix_tokens not in hint.prefixes:
        return False
    grids = [(image[0] // h, image[1] // w) for h, w in hint.strides]
    return layout.grid in grids if grids else fits_image(layout, image)


def fits_image(layout: FeatureLayout, image: tuple[int, int]) -> bool:
    """Whether positions are about as high as they are wide, in pixels."""
    if layout.grid is None:
        return True
    height, width = image[0] / layout.grid[0], image[1] / layout.grid[1]
    return max(height, width) / min(height, width) < 1.2 and min(height, width) >= 1


def usual(layout: FeatureLayout) -> bool:
    """Maps, and tokens behind none, a class token, or one with registers."""
    return layout.kind != "tokens" or layout.prefix_tokens in (0, 1, 2, 5)
