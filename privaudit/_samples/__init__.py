"""Photographs that anyone may pass on, for demos and controls. No torch here.

Sources and licences: ``LICENSES.md`` in this folder. Sizes are (height, width), as in
tensors.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

_NAMES = (
    "astronaut",
    "cat",
    "coffee",
    "retina",
    "camera",
    "rocket",
    "galaxies",
    "bricks",
)

# Half-size windows as (left, top) in quarters of the side. The corners come first: as
# long as no more than 4 crops a photograph are asked for, none shares a pixel.
_WINDOWS = ((0, 0), (2, 2), (2, 0), (0, 2), (1, 0), (1, 2), (0, 1), (2, 1))

MAX_CROPS = len(_NAMES) * len(_WINDOWS)


def names() -> list[str]:
    """The photographs, in the order that :func:`load` returns them."""
    return list(_NAMES)


def load(count: int, size: tuple[int, int]) -> list[Image]:
    """The first ``count`` photographs as RGB pictures.

    The centre is cropped to the shape asked for, then resized with antialiasing.

    Args:
        count: How many.
        size: (height, width) in pixels.

    Raises:
        ConfigError: More than there are, or an impossible size.
    """
    _check("load", count, size, available=len(_NAMES))
    return [_fit(_open(name), size) for name in _NAMES[:count]]


def crops(count: int, size: tuple[int, int]) -> list[Image]:
    """Up to 64 pictures that have nothing to do with each other, for controls.

    They are different windows of the photographs, one photograph after the other, so
    that neighbours never show the same scene. The photographs are 256 pixels wide and
    a window half of that: larger sizes are softer than a camera's picture.

    Args:
        count: How many.
        size: (height, width) in pixels.

    Raises:
        ConfigError: More than there are, or an impossible size.
    """
    _check("crops", count, size, available=MAX_CROPS)
    photographs = [_open(name) for name in _NAMES[:count]]
    return [
        _fit(_window(photographs[i % len(_NAMES)], i // len(_NAMES)), size)
        for i in range(count)
    ]


def _open(name: str) -> Image:
    from PIL import Image

    with (files(__name__) / f"{name}.jpg").open("rb") as file:
        return Image.open(file).convert("RGB")


def _window(picture: Image, index: int) -> Image:
    width, height = picture.size
    column, row = _WINDOWS[index]
    left, top = column * width // 4, row * height // 4
    return picture.crop((left, top, left + width // 2, top + height // 2))


def _fit(picture: Image, size: tuple[int, int]) -> Image:
    from PIL import ImageOps
    from PIL.Image import Resampling

    height, width = size
    return ImageOps.fit(picture, (width, height), method=Resampling.LANCZOS)


def _check(function: str, count: int, size: tuple[int, int], *, available: int) -> None:
    if not 0 <= count <= available:
        raise ConfigError(
            f"_samples.{function}.count",
            expected=f"0 to {available}",
            got=str(count),
            hint="Bring your own images to have more.",
        )
    if min(size) < 1:
        raise ConfigError(
            f"_samples.{function}.size",
            expected="(height, width), both at least 1",
            got=str(size),
            hint="Give the size in pixels that the model takes.",
        )
