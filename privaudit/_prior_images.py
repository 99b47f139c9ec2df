"""Images to train a prior on: folders, zips and arrays, each a stack of one size."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".webp"}
LARGER = 2.5
"""Photographs are kept that many times larger than the crops that are learnt."""


def stack(
    source: Path, *, mode: str, size: int, part: str, count: int | None
) -> Tensor:
    """All images of a source, uint8 (count, C, side, side).

    Args:
        source: A folder, a .zip, or an .npz with ``images`` of (count, H, W[, C]).
        mode: ``RGB`` or ``L``.
        size: Of the crops that are to be learnt.
        part: Only files whose path inside starts with it.
        count: Only so many, the first by name; None: all.

    Raises:
        ConfigError: There is nothing, or something that is no image.
    """
    import numpy as np
    import torch

    if source.suffix == ".npz":
        return _array(source, mode, count)
    names = list(islice(_names(source, part), count))
    if not names:
        raise _nothing(source, part)
    side = min(_short_sides(source, names)[len(names) // 2], int(LARGER * size))
    found = [np.array(_square(i, mode, side)) for i in _open(source, names)]
    pixels = torch.from_numpy(np.stack(found))
    return pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)


def _array(source: Path, mode: str, count: int | None) -> Tensor:
    import numpy as np
    import torch

    try:
        pixels = torch.from_numpy(np.load(source)["images"][:count])
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(
            str(source), expected="an .npz with an array `images`", got=str(error),
            hint="Save uint8 images of shape (count, height, width[, channels]).",
        ) from error  # fmt: skip
    pixels = pixels[..., None] if pixels.dim() == 3 else pixels
    wanted = 1 if mode == "L" else 3
    if pixels.dtype != torch.uint8 or pixels.dim() != 4 or pixels.shape[3] != wanted:
        raise ConfigError(
            f"{source}: images",
            expected=f"uint8 of shape (count, height, width, {wanted})",
            got=f"{pixels.dtype} {tuple(pixels.shape)}",
            hint="Choose --image-mode L for grey images.",
        )
    return pixels.permute(0, 3, 1, 2).contiguous()


def _names(source: Path, part: str) -> Iterator[str]:
    if source.is_dir():
        every = [p.relative_to(source).as_posix() for p in source.rglob("*")]
    elif source.suffix == ".zip":
        with zipfile.ZipFile(source) as archive:
            every = archive.namelist()
    else:
        raise _nothing(source, part)
    for name in sorted(every):
        if Path(name).suffix.lower() in SUFFIXES and name.startswith(part):
            yield name


def _open(source: Path, names: list[str]) -> Iterator[Image]:
    from PIL import Image, UnidentifiedImageError

    archive = None if source.is_dir() else zipfile.ZipFile(source)
    try:
        for name in names:
            place = source / name if archive is None else io.BytesIO(archive.read(name))
            try:
                with Image.open(place) as image:
                    yield image
            except (OSError, UnidentifiedImageError) as error:
                raise ConfigError(
                    f"{source}: {name}", expected="an image", got=str(error),
                    hint="Remove the file, or copy it again.",
                ) from error  # fmt: skip
    finally:
        if archive is not None:
            archive.close()


def _short_sides(source: Path, names: list[str]) -> list[int]:
    return sorted(min(image.size) for image in _open(source, names))


def _square(image: Image, mode: str, side: int) -> Image:
    """The middle of an image, as large as fits."""
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) // 2, (height - short) // 2
    box = (left, top, left + short, top + short)
    found = image.convert(mode)
    return found.resize((side, side), box=box) if short != side else found.crop(box)


def _nothing(source: Path, part: str) -> ConfigError:
    inside = f" under {part!r}" if part else ""
    return ConfigError(
        "--images", expected="a folder, a .zip or an .npz with images",
        got=f"no image in {source}{inside}", hint="Check the path.",
    )  # fmt: skip
