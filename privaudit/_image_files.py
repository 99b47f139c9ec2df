"""Files that hold numbers rather than pictures: arrays, and TIFFs of any depth.

The numbers are kept as they are; what black and white are, a range has to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privaudit.errors import ConfigError, MissingDependencyError

ARRAY_SUFFIXES = {".npy", ".npz", ".pt", ".pth"}
TIFF_SUFFIXES = {".tif", ".tiff"}
_BITS, _SAMPLES = 258, 277
_REDUCED_OR_MASK = 1 | 4
"""Bits of a TIFF's NewSubfileType: an overview, or a mask."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """One image as its file holds it.

    Attributes:
        values: (channels, height, width), in the units of the file.
        filename: The path; images of one stack carry their number behind it.
    """

    values: Tensor
    filename: str


def unstacked(items: Sequence[Any], *, channels_last: bool = False) -> list[Any]:
    """The items, where each file of numbers has become the images that it holds.

    A file that cannot be read stays a path: whoever opens it lists the reason.

    Raises:
        ConfigError: A file holds something else than images.
        MissingDependencyError: A TIFF that Pillow cannot read whole.
    """
    return [found for item in items for found in _images_of(item, channels_last)]


def _images_of(item: Any, channels_last: bool) -> Iterator[Any]:
    if not isinstance(item, (str, Path)) or not holds_numbers(Path(item)):
        yield item
        return
    try:
        values = read_numbers(Path(item))
    except OSError:
        yield item
        return
    in_tiff = Path(item).suffix.lower() in TIFF_SUFFIXES
    stack = _stack(values, Path(item), channels_last and not in_tiff)
    for number, image in enumerate(stack):
        suffix = f"[{number}]" if values.dim() == 4 else ""
        yield Pixels(image, f"{item}{suffix}")


def _stack(values: Tensor, path: Path, channels_last: bool) -> Tensor:
    """(images, channels, height, width)."""
    if values.dim() not in (2, 3, 4) or not values.numel():
        raise ConfigError(
            path.name,
            expected="one image (height, width) or (channels, height, width), or a "
            "stack (images, channels, height, width)",
            got=f"shape {tuple(values.shape)}",
            hint="Save the images in one of these shapes.",
        )
    if values.dim() == 2:
        return values[None, None]
    if channels_last:
        values = values.movedim(-1, -3)
    return values if values.dim() == 4 else values[None]


def holds_numbers(path: Path) -> bool:
    """True for arrays, and for TIFFs of which Pillow would drop a part."""
    suffix = path.suffix.lower()
    return suffix in ARRAY_SUFFIXES or (
        suffix in TIFF_SUFFIXES and not _is_picture(path)
    )


def read_numbers(path: Path) -> Tensor:
    """What an array file or a TIFF holds, TIFF channels first.

    Raises:
        OSError: Missing or damaged.
        ConfigError: Not the numbers of images.
        MissingDependencyError: A TIFF that needs ``tifffile``.
    """
    reader = _READERS.get(path.suffix.lower(), _tiff)
    try:
        return _tensor(reader(path), path)
    except (ConfigError, MissingDependencyError, OSError):
        raise
    except Exception as error:
        # Each reader has its own errors for a damaged file.
        text = next(iter(str(error).splitlines()), "")
        raise OSError(text or type(error).__name__) from error


def _npy(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def _npz(path: Path) -> Any:
    with np.load(path, allow_pickle=False) as held:
        return _only({name: held[name] for name in held.files}, path)


def _pt(path: Path) -> Any:
    held = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(held, list) and all(isinstance(t, Tensor) for t in held):
        return torch.stack(held)
    return _only(held, path) if isinstance(held, dict) else held


def _only(held: dict[Any, Any], path: Path) -> Any:
    """The one array of a file that can hold several."""
    if len(held) == 1:
        return next(iter(held.values()))
    raise ConfigError(
        path.name,
        expected="one array",
        got=f"{len(held)}: {', '.join(map(str, list(held)[:5]))}",
        hint="Save the images alone, for example with numpy.save.",
    )


def _tensor(values: Any, path: Path) -> Tensor:
    """A tensor of a type that torch computes with."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "uif":
        wider = {"u2": np.int32, "u4": np.int64, "f16": np.float64}
        plain = values.dtype.newbyteorder("=")
        kind = wider.get(values.dtype.str[1:], plain)
        values = torch.from_numpy(np.ascontiguousarray(values, dtype=kind))
    if isinstance(values, Tensor) and _is_numeric(values):
        return values.detach()
    raise ConfigError(
        path.name,
        expected="an array of whole or floating-point numbers",
        got=str(getattr(values, "dtype", type(values).__name__)),
        hint="Save the images as numbers, for example with numpy.save.",
    )


def _is_numeric(values: Tensor) -> bool:
    return not values.is_complex() and values.dtype != torch.bool


def _is_picture(path: Path) -> bool:
    """True for a TIFF that Pillow reads without dropping pages, bands or bits."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    try:
        with path.open("rb") as file:
            header = file.read(8)
            header += file.read(8) if header[2] == 43 else b""
            tags = ImageFileDirectory_v2(header)
            file.seek(tags.next)
            tags.load(file)
    except (OSError, SyntaxError, ValueError, IndexError, TypeError):
        return True  # whoever opens it says what is wrong
    samples, bits = tags.get(_SAMPLES, 1), set(tags.get(_BITS, (1,)))
    if tags.next:
        return False
    return samples == 1 or (samples in (3, 4) and bits == {8})


def _tiff(path: Path) -> Any:
    """All bands of the one image in a TIFF, channels first."""
    try:
        import tifffile
    except ImportError as error:
        raise MissingDependencyError(
            path.name,
            expected="the package tifffile, to read a TIFF of several pages, of many "
            "bands, or of more than 8 bits a colour",
            got="none installed",
            hint="pip install 'privaudit[tiff]', or save the image as .npy.",
        ) from error
    with tifffile.TiffFile(path) as file:
        found = [s for s in file.series if not _is_extra(s)]
        if len(found) != 1:
            raise ConfigError(
                path.name,
                expected="one image",
                got=f"{len(found)} of different shapes",
                hint="Save each in a file of its own.",
            )
        return _channels_first(found[0].asarray(), found[0].axes, path)


def _is_extra(series: Any) -> bool:
    return bool(int(series.keyframe.subfiletype) & _REDUCED_OR_MASK)


def _channels_first(values: Any, axes: str, path: Path) -> Any:
    others = [i for i, axis in enumerate(axes) if axis not in "YX"]
    real = [i for i in others if values.shape[i] > 1]
    if len(real) > 1 or not {"Y", "X"} <= set(axes):
        raise ConfigError(
            path.name,
            expected="height, width, and at most one axis of bands or pages",
            got=f"axes {axes} of shape {tuple(values.shape)}",
            hint="Save one image as (channels, height, width) in a .npy file.",
        )
    order = [*others, axes.index("Y"), axes.index("X")]
    turned = values.transpose(order)
    return turned.reshape(-1, *turned.shape[-2:])


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".pt": _pt,
    ".pth": _pt,
}


def fitted(values: Tensor, size: tuple[int, int], *, classes: bool = False) -> Tensor:
    """Resized by the shorter side and centre-cropped, as pictures are.

    Args:
        values: (channels, height, width).
        size: (height, width).
        classes: True for class ids, which have nothing between them.
    """
    from PIL import Image, ImageOps

    how = Image.Resampling.NEAREST if classes else Image.Resampling.LANCZOS
    height, width = size
    # Two numbers may lie further apart than float32 tells: classes stay whole.
    kind = np.int32 if classes else np.float32
    planes = [
        np.array(ImageOps.fit(Image.fromarray(p), (width, height), how))
        for p in values.numpy().astype(kind)
    ]
    found = torch.from_numpy(np.stack(planes))
    if not values.is_floating_point():
        found = found.round()
    # The filter overshoots at edges; no value may leave the range of the data.
    return found.clamp(float(values.min()), float(values.max())).to(values.dtype)
