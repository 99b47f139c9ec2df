"""What a user hands over, turned into checked images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privaudit._pixels import Normalisation, refuse_nan, to_pixels
from privaudit.errors import ConfigError, NothingToAuditError


def _unreadable() -> tuple[type[Exception], ...]:
    """What PIL raises for a damaged, or a monstrous, file."""
    from PIL.Image import DecompressionBombError

    return (OSError, SyntaxError, EOFError, ValueError, DecompressionBombError)


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


def read_sample(
    sample: Any, normalisation: Normalisation, *, channels: int | None
) -> tuple[Sample, Normalisation]:
    """Turn whatever a user hands over into checked images in [0, 1].

    Args:
        sample: Images; (images, labels); or a mapping with one image tensor and
            optional ``labels``. Images are a float tensor (B, C, H, W), a uint8
            tensor, PIL images, paths, or a list of any of these.
        normalisation: As given by the user.
        channels: What the model takes; None when unknown.

    Returns:
        The sample, and the normalisation to use with it.

    Raises:
        ConfigError: Shape, channels, range or labels cannot be used.
    """
    images, labels, keyword = _split(sample)
    found, names, skipped = _gather(images, channels)
    _check_shape(found, channels)
    normalisation.check_channels(found.shape[1])
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
            tuple(notes),
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
    if isinstance(sample, tuple) and len(sample) == 2 and not _is_image(sample[1]):
        return sample[0], sample[1], None
    if isinstance(sample, list) and _is_collated(sample):
        return sample[0], sample[1], None
    return sample, None, None


def _is_collated(sample: list[Any]) -> bool:
    """What a DataLoader gives: a list of one batch of images and its labels."""
    tensors = all(isinstance(part, Tensor) for part in sample)
    return (
        len(sample) == 2 and tensors and sample[0].dim() == 4 and sample[1].dim() <= 2
    )


def _is_image(value: Any) -> bool:
    """Tell a pair of images from (images, labels)."""
    if isinstance(value, Tensor):
        return value.dim() >= 3
    return isinstance(value, (str, Path)) or hasattr(value, "convert")


def _gather(
    images: Any, channels: int | None
) -> tuple[Tensor, list[str], list[tuple[int, str, str]]]:
    if isinstance(images, Tensor):
        batch = _from_tensor(images, "images")
        return batch, [f"image {i}" for i in range(len(batch))], []
    single = isinstance(images, (str, Path)) or hasattr(images, "convert")
    items = [images] if single else _as_list(images)
    ready: list[Tensor] = []
    names: list[str] = []
    skipped: list[tuple[int, str, str]] = []
    for index, item in enumerate(items):
        name = _name(item, index)
        try:
            ready.append(_one(item, index, channels))
            names.append(name)
        except _unreadable() as error:
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


def _one(item: Any, index: int, channels: int | None) -> Tensor:
    if isinstance(item, Tensor):
        if item.dim() != 3:
            raise ConfigError(
                f"image {index}",
                expected="shape (channels, height, width)",
                got=str(tuple(item.shape)),
                hint="Pass one tensor per image, or one tensor of shape (B, C, H, W).",
            )
        _check_shape(item[None], channels, index)
        return _from_tensor(item[None], f"image {index}", index)[0]
    image = _open(item)
    wanted = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels or 3, "RGB")
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode not in ("L", "RGB", "RGBA"):
        raise _mode_error(index, image.mode, len(image.getbands()), wanted)
    array = torch.from_numpy(np.array(image, dtype=np.uint8))
    array = array[None] if array.dim() == 2 else array.permute(2, 0, 1)
    if channels is not None and len(array) != channels:
        raise _mode_error(index, image.mode, len(array), wanted, channels)
    return array.float() / 255


def _open(item: Any) -> Any:
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
            image.load()
            return image
    except Image.DecompressionBombError as error:
        raise OSError(str(error)) from error


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


def _from_tensor(images: Tensor, where: str, first: int = 0) -> Tensor:
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
    if images.dtype == torch.uint8:
        return images.detach().float() / 255
    if not images.is_floating_point():
        raise ConfigError(
            where,
            expected="float in [0, 1] or uint8",
            got=str(images.dtype),
            hint="Convert it: uint8 for 0 to 255, float for 0 to 1.",
        )
    data = images.detach().float()
    refuse_nan(data, first)
    return data


def _check_shape(images: Tensor, channels: int | None, index: int = 0) -> None:
    got = images.shape[1]
    if got == channels:
        return
    if images.shape[-1] == channels or (channels is None and _is_hwc(images)):
        raise ConfigError(
            f"image {index}",
            expected=f"channels first: ({images.shape[-1]}, height, width)",
            got=f"channels last (HWC): {tuple(images.shape[1:])}",
            hint="Permute it: image.permute(2, 0, 1).",
        )
    if channels is None:
        return
    kind = {1: "grey", 3: "RGB", 4: "RGBA"}.get(got, "an image")
    wanted = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels, "RGB")
    raise ConfigError(
        f"image {index}",
        expected=f"{channels} channels, as the model expects {channels}",
        got=f"{kind} ({got} channels)",
        hint=f"Convert it on purpose, for example image.convert({wanted!r}).",
    )


def _is_hwc(images: Tensor) -> bool:
    """Channels last, where no layer says how many channels there are."""
    height, width, last = images.shape[1:]
    large = min(height, width) > 4
    return large and (last in (3, 4) or (last == 1 and height == width))


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
