"""Pictures as Pillow reads them, channels first, with nothing lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privaudit._image_files import Pixels, holds_numbers, read_numbers
from privaudit.errors import ConfigError


def unreadable() -> tuple[type[Exception], ...]:
    """What PIL raises for a damaged, or a monstrous, file."""
    from PIL.Image import DecompressionBombError

    return (OSError, SyntaxError, EOFError, ValueError, DecompressionBombError)


def values_of(item: Any, index: int, channels: int | None) -> Tensor:
    """(channels, height, width) in the units of the item.

    Args:
        item: A tensor, a picture or a path.
        index: Its number, for errors.
        channels: What the model takes; None when unknown.

    Raises:
        ConfigError: Another number of channels, or a kind that would lose some.
        OSError: Missing or damaged.
    """
    if isinstance(item, (Tensor, Pixels)):
        return item if isinstance(item, Tensor) else item.values
    if isinstance(item, (str, Path)) and holds_numbers(Path(item)):
        return read_numbers(Path(item))
    image = open_picture(item)
    wanted = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels or 3, "RGB")
    if image.mode[0] in "IF":
        if channels not in (None, 1):
            raise _deep_error(index, image.mode, channels)
        return torch.from_numpy(_numbers(image))[None]
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode not in ("L", "RGB", "RGBA"):
        raise _mode_error(index, image.mode, len(image.getbands()), wanted)
    array = torch.from_numpy(np.array(image, dtype=np.uint8))
    array = array[None] if array.dim() == 2 else array.permute(2, 0, 1)
    if channels is not None and len(array) != channels:
        raise _mode_error(index, image.mode, len(array), wanted, channels)
    return array


def _deep_error(index: int, mode: str, channels: int | None) -> ConfigError:
    return ConfigError(
        f"image {index}",
        expected=f"{channels} channels, as the model takes",
        got=f"{mode} (1 channel of more than 8 bits)",
        hint="Save it with as many channels as a .npy file, (channels, height, width), "
        "and declare its range. A plain conversion would cut values off.",
    )


def _numbers(image: Any) -> Any:
    """The values of a picture of one deep channel, of a type that torch knows."""
    return np.array(image).astype(np.float32 if image.mode[0] == "F" else np.int32)


def open_picture(item: Any) -> Any:
    """A picture, read into memory; one that is open already is taken as it is.

    Raises:
        ConfigError: No picture and no path, or 16 bits a colour.
        OSError: Missing, damaged, or monstrous.
    """
    if hasattr(item, "convert"):
        return item
    if not isinstance(item, (str, Path)):
        raise ConfigError(
            "sample",
            expected="a tensor, a PIL image or a path",
            got=type(item).__name__,
            hint="Convert it first.",
        )
    from PIL import Image

    try:
        with Image.open(item) as image:
            _refuse_cut_bits(image)
            image.load()
            return image
    except Image.DecompressionBombError as error:
        raise OSError(str(error)) from error


def _refuse_cut_bits(image: Any) -> None:
    """Pillow reads 16 bits a colour as 8, without a word.

    Raises:
        ConfigError: A colour picture of that depth.
    """
    for tile in image.tile:
        given = tile[3] if isinstance(tile[3], str) else str((tile[3] or [""])[0])
        if "16" in given and image.mode[0] not in "IF":
            raise ConfigError(
                Path(image.filename).name,
                expected="at most 8 bits a colour in this format",
                got=f"16 bits ({given})",
                hint="Convert it to 8 bits on purpose, or save it as TIFF or .npy and "
                "declare its range.",
            )


def _mode_error(
    index: int, mode: str, bands: int, wanted: str, channels: int | None = None
) -> ConfigError:
    takes = f"{channels} channel(s)" if channels else "8-bit grey, RGB or RGBA"
    return ConfigError(
        f"image {index}",
        expected=f"{takes}, as the model takes",
        got=f"{mode} ({bands} channels)",
        hint=f"Convert it on purpose: image.convert({wanted!r}), or "
        f"--image-mode {wanted} on the command line. An alpha channel is never "
        "dropped in silence.",
    )
