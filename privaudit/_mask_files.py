"""Targets that are no list of class ids: masks for segmentation, and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from privaudit._image_files import ARRAY_SUFFIXES, fitted, holds_numbers, read_numbers
from privaudit._picture_files import open_picture, unreadable
from privaudit.errors import ConfigError

_PICTURES = {".bmp", ".gif", ".pgm", ".png", ".tif", ".tiff"}
"""Not JPEG, which blurs class ids into others."""
MASK_SUFFIXES = _PICTURES | ARRAY_SUFFIXES


def load_masks(
    path: Path, places: Sequence[str], size: tuple[int, int] | None
) -> Tensor:
    """Targets in the order of the images.

    Args:
        path: A folder with one mask for each image, of the same name up to the suffix;
            a mask for the only image; or an array with one entry for each image, in
            order of the image names.
        places: The paths of the images.
        size: Resize and crop masks to (height, width), as the images are.

    Returns:
        Class ids per pixel, (images, height, width), or the array as it is.

    Raises:
        ConfigError: An image without a mask, or a mask that holds no class ids.
    """
    if path.is_dir():
        masks = [_mask(_of(path, place), size) for place in places]
        return _stacked(masks, places)
    if path.suffix.lower() in _PICTURES:
        return _stacked([_mask(path, size)], places)
    found = _read(path)
    if found.dim() == 2 and len(places) == 1 and len(found) > 1:
        found = found[None]
    if size is None or found.dim() < 3:
        return found
    return torch.stack([_fit(one, size) for one in found])


def _of(folder: Path, place: str) -> Path:
    """The mask for one image: its path under the folder may be any end of its own."""
    whole = PurePosixPath(place)
    parts = [p for p in whole.parts if p != whole.anchor]
    tails = [PurePosixPath(*parts[i:]) for i in range(len(parts))]
    for tail in tails:
        parent = folder / tail.parent
        fits = [
            f
            for f in sorted(parent.glob("*"))
            if normalize("NFC", f.stem) == tail.stem
            and f.suffix.lower() in MASK_SUFFIXES
        ]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise ConfigError(
                f"--labels: {tail.name}",
                expected="one mask",
                got=", ".join(f.name for f in fits),
                hint="Leave one of them.",
            )
    raise ConfigError(
        f"--labels: {whole.name}",
        expected=f"a mask {whole.stem}.png, .tif or .npy in {folder}",
        got="none",
        hint="Masks are named as their images; save them without loss, not as JPEG.",
    )


def _mask(path: Path, size: tuple[int, int] | None) -> Tensor:
    """One mask, (height, width)."""
    mask = _read(path)
    while mask.dim() > 2 and mask.shape[0] == 1:
        mask = mask[0]
    if mask.dim() != 2:
        raise ConfigError(
            f"--labels: {path.name}",
            expected="one class id for each pixel, (height, width)",
            got=f"shape {tuple(mask.shape)}",
            hint="Turn colours into class ids first: a mask of one channel.",
        )
    return mask if size is None else _fit(mask, size)


def _read(path: Path) -> Tensor:
    try:
        if holds_numbers(path):
            values = read_numbers(path)
        else:
            values = torch.from_numpy(_ids(open_picture(path)))
    except unreadable() as error:
        raise ConfigError(
            f"--labels: {path.name}",
            expected="a readable mask or array",
            got=str(error) or type(error).__name__,
            hint="Check the file.",
        ) from error
    return values if values.is_floating_point() else values.long()


def _ids(picture: Any) -> Any:
    """Values as they are; of a palette picture the numbers, not the colours."""
    values = np.array(picture)
    if values.dtype.kind in "bui":
        values = values.astype(np.int64)
    return values if values.ndim == 2 else values.transpose(2, 0, 1)


def _fit(mask: Tensor, size: tuple[int, int]) -> Tensor:
    planes = mask.reshape(-1, *mask.shape[-2:])
    found = fitted(planes, size, classes=not mask.is_floating_point())
    return found.view(*mask.shape[:-2], *size)


def _stacked(masks: Sequence[Tensor], places: Sequence[str]) -> Tensor:
    for mask, place in zip(masks, places, strict=False):
        if mask.shape != masks[0].shape:
            raise ConfigError(
                f"--labels: {PurePosixPath(place).name}",
                expected=f"a mask of shape {tuple(masks[0].shape)}, as the first",
                got=str(tuple(mask.shape)),
                hint="Resize images and masks alike, or pass --size.",
            )
    return torch.stack(list(masks))
