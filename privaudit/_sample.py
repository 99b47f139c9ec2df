"""What a user hands over, turned into checked images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privaudit._image_files import unstacked
from privaudit._picture_files import unreadable, values_of
from privaudit._pixels import (
    Normalisation,
    from_range,
    in_units,
    refuse_nan,
    to_pixels,
)
from privaudit.errors import ConfigError, NothingToAuditError


@dataclass(frozen=True, eq=False)
class Sample:
    """What a user handed over, as images in [0, 1].

    Attributes:
        images: (batch, channels, height, width), float32.
        labels: As given, one per image; None when left out.
        names: One per image.
        keyword: The key of a mapping sample, such as ``pixel_values``.
        skipped: Inputs that could not be read, with the reason.
        notes: What was done to the images, in words.
    """

    images: Tensor
    labels: Tensor | None
    names: tuple[str, ...]
    keyword: str | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


Range = tuple[float, float] | None
"""The values of black and white, where the user declared them."""


def read_sample(
    sample: Any,
    normalisation: Normalisation,
    *,
    channels: int | None,
    value_range: Range = None,
) -> tuple[Sample, Normalisation]:
    """Turn whatever a user hands over into checked images in [0, 1].

    Args:
        sample: Images; (images, labels); or a mapping with one image tensor and
            optional ``labels``. Images are a float tensor (B, C, H, W), a uint8
            tensor, PIL images, paths, or a list of any of these.
        normalisation: As given by the user.
        channels: What the model takes; None when unknown.
        value_range: Black and white in the units of the images; None: [0, 1] for
            floats, 0 to 255 for uint8.

    Returns:
        The sample, and the normalisation to use with it.

    Raises:
        ConfigError: Shape, channels, range or labels cannot be used.
    """
    images, labels, keyword = _split(sample)
    found, names, skipped = _gather(images, channels, value_range)
    _check_shape(found, channels)
    normalisation.check_channels(found.shape[1])
    said = []
    if value_range is not None:
        found, note = from_range(found, value_range)
        said.append(note)
    found, normalisation, notes = to_pixels(found, normalisation)
    labels = _labels(labels, len(found) + len(skipped))
    if labels is not None and skipped:
        lost = {int(n) for n, _, _ in skipped}
        labels = labels[[i for i in range(len(labels)) if i not in lost]]
    return (
        Sample(
            found,
            labels,
            tuple(names),
            keyword,
            tuple((name, why) for _, name, why in skipped),
            (*said, *notes),
        ),
        normalisation,
    )


def _split(sample: Any) -> tuple[Any, Any, str | None]:
    if isinstance(sample, Mapping):
        rest = {k: v for k, v in sample.items() if k not in ("labels", "label")}
        if len(rest) != 1:
            raise ConfigError(
                "sample",
                expected='one image entry, as in {"pixel_values": …, "labels": …}',
                got=f"keys {', '.join(map(str, sample))}",
                hint="Leave out the entries that are not images.",
            )
        key, images = next(iter(rest.items()))
        return images, sample.get("labels", sample.get("label")), str(key)
    if isinstance(sample, tuple) and len(sample) == 2 and not _is_pair(sample):
        return sample[0], sample[1], None
    if isinstance(sample, list) and _is_collated(sample):
        return sample[0], sample[1], None
    return sample, None, None


def _is_collated(sample: list[Any]) -> bool:
    """What a DataLoader gives: a list of one batch of images and its labels."""
    tensors = all(isinstance(part, Tensor) for part in sample)
    return (
        len(sample) == 2 and tensors and sample[0].dim() == 4 and sample[1].dim() <= 3
    )


def _is_pair(sample: tuple[Any, ...]) -> bool:
    """Two images, not (images, labels): behind a batch stand labels, even masks."""
    first = sample[0]
    batch = isinstance(first, Sequence) and not isinstance(first, str)
    batch = batch or (isinstance(first, Tensor) and first.dim() > 3)
    return not batch and _is_image(sample[1])


def _is_image(value: Any) -> bool:
    """One image, as a tensor, a picture or a path."""
    if isinstance(value, Tensor):
        return value.dim() >= 3
    return isinstance(value, (str, Path)) or hasattr(value, "convert")


def _gather(
    images: Any, channels: int | None, value_range: Range
) -> tuple[Tensor, list[str], list[tuple[int, str, str]]]:
    if isinstance(images, Tensor):
        batch = _from_tensor(images, "images", value_range=value_range)
        return batch, [f"image {i}" for i in range(len(batch))], []
    single = isinstance(images, (str, Path)) or hasattr(images, "convert")
    items = unstacked([images] if single else _as_list(images))
    ready: list[Tensor] = []
    names: list[str] = []
    skipped: list[tuple[int, str, str]] = []
    for index, item in enumerate(items):
        name = _name(item, index)
        try:
            ready.append(_one(item, index, channels, value_range))
            names.append(name)
        except unreadable() as error:
            skipped.append((index, name, str(error) or type(error).__name__))
    if not ready:
        raise NothingToAuditError(
            "sample",
            expected="at least one readable image",
            got="; ".join(f"{n}: {why}" for _, n, why in skipped) or "an empty list",
            hint="Check the paths.",
        )
    _same_size(ready, names)
    return torch.stack(ready), names, skipped


def _name(item: Any, index: int) -> str:
    """File name where there is one, in letters that every file can hold."""
    path = item if isinstance(item, (str, Path)) else getattr(item, "filename", "")
    name = Path(path).name if path else f"image {index}"
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _as_list(images: Any) -> Sequence[Any]:
    if isinstance(images, Sequence):
        return images
    raise ConfigError(
        "sample",
        expected="a tensor, PIL images, paths, or a list of these",
        got=type(images).__name__,
        hint="Convert it, for example with torch.from_numpy.",
    )


def _one(item: Any, index: int, channels: int | None, value_range: Range) -> Tensor:
    values = values_of(item, index, channels)
    if values.dim() != 3:
        raise ConfigError(
            f"image {index}",
            expected="shape (channels, height, width)",
            got=str(tuple(values.shape)),
            hint="Pass one tensor per image, or one tensor of shape (B, C, H, W).",
        )
    _check_shape(values[None], channels, index)
    where = f"image {index}"
    return _from_tensor(values[None], where, index, value_range=value_range)[0]


def _from_tensor(
    images: Tensor, where: str, first: int = 0, *, value_range: Range = None
) -> Tensor:
    if images.dim() != 4:
        raise ConfigError(
            where,
            expected="shape (batch, channels, height, width)",
            got=str(tuple(images.shape)),
            hint="Add the missing dimension, for example with images[None].",
        )
    if len(images) == 0:
        raise ConfigError(
            where, expected="at least one image", got="none", hint="Pass images."
        )
    if value_range is not None:
        images = in_units(images, value_range, where)
    if images.dtype == torch.uint8:
        return images.detach().float() / 255
    if not images.is_floating_point():
        raise _no_range(images, where)
    data = images.detach().float()
    refuse_nan(data, first)
    return data


def _no_range(images: Tensor, where: str) -> ConfigError:
    kind = str(images.dtype).removeprefix("torch.")
    return ConfigError(
        where,
        expected="float in [0, 1] or uint8, or a declared range",
        got=f"{kind} values from {images.min()} to {images.max()}, and no range",
        hint="Name the values of black and white: --range LOW HIGH on the command "
        "line, value_range=(low, high) in Python. It is not guessed from the data.",
    )


def _check_shape(images: Tensor, channels: int | None, index: int = 0) -> None:
    got = images.shape[1]
    if got == channels:
        return
    if images.shape[-1] == channels or (channels is None and _is_hwc(images)):
        raise ConfigError(
            f"image {index}",
            expected=f"channels first: ({images.shape[-1]}, height, width)",
            got=f"channels last (HWC): {tuple(images.shape[1:])}",
            hint="Permute it: image.permute(2, 0, 1), or pass --channels-last on the "
            "command line.",
        )
    if channels is None:
        return
    kind = {1: "grey", 3: "RGB", 4: "RGBA"}.get(got, "an image")
    wanted = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)
    raise ConfigError(
        f"image {index}",
        expected=f"{channels} channels, as the model expects {channels}",
        got=f"{kind} ({got} channels)",
        hint=f"Convert it on purpose, for example image.convert({wanted!r})."
        if wanted
        else f"Give all {channels} as (channels, height, width); many images in one "
        "file are (images, channels, height, width).",
    )


_MANY = 16
"""More channels than images mostly have."""


def _is_hwc(images: Tensor) -> bool:
    """Channels last, where no layer says how many channels there are."""
    height, width, last = images.shape[1:]
    large = min(height, width) > 4
    square = height == width and last < height and last <= _MANY
    return large and (last in (3, 4) or square)


def _same_size(images: list[Tensor], names: list[str]) -> None:
    first = images[0].shape
    for image, name in zip(images, names, strict=True):
        if image.shape != first:
            raise ConfigError(
                name,
                expected=f"shape {tuple(first)} as {names[0]}",
                got=str(tuple(image.shape)),
                hint="Resize and crop the images as the model's own preprocessing "
                "does, or pass --size on the command line.",
            )


def _labels(labels: Any, count: int) -> Tensor | None:
    if labels is None:
        return None
    try:
        tensor = torch.as_tensor(labels).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "labels",
            expected="numbers, one per image",
            got=f"{type(labels).__name__} ({error})",
            hint="Map names to class ids first.",
        ) from error
    if tensor.dim() == 0:
        tensor = tensor[None]
    if len(tensor) != count:
        raise ConfigError(
            "labels",
            expected=f"{count}, one per image",
            got=str(len(tensor)),
            hint="Pass as many labels as images, in the same order.",
        )
    return tensor
