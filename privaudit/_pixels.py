"""The only file that knows pixel ranges and normalisation.

Images are float32 in [0, 1] everywhere outside the user's model.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privaudit.config import bands_of
from privaudit.errors import ConfigError

_TOLERANCE = 1e-4
_LARGEST = 4.0
"""A mean or std beyond this is not in [0, 1] units."""
_FILLED = 1 / 16
"""12-bit values in a range declared as 16 bits fill less than this of it."""


@dataclass(frozen=True, eq=False)
class Normalisation:
    """From [0, 1] pixels to the model's input: ``(pixels - mean) / std``.

    Attributes:
        mean: Per channel, in [0, 1] units; None takes images as they are.
        std: Per channel.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @classmethod
    def of(cls, mean: Any, std: Any) -> Normalisation:
        """Check what a user gave.

        Raises:
            ConfigError: Only one of the two, other lengths, or a std of 0.
        """
        if mean is None and std is None:
            return cls()
        if mean is None or std is None:
            missing = "mean" if mean is None else "std"
            raise ConfigError(
                f"Auditor.{missing}",
                expected="mean and std together",
                got=f"no {missing}",
                hint="Pass both, or neither if the model takes pixels in [0, 1].",
            )
        means, stds = _floats(mean), _floats(std)
        if len(means) != len(stds):
            raise ConfigError(
                "Auditor.std",
                expected=f"{len(means)} values as in mean",
                got=str(len(stds)),
                hint="Give one value per channel in both.",
            )
        if any(not abs(m) <= _LARGEST for m in means) or max(stds) > _LARGEST:
            raise ConfigError(
                "Auditor.mean",
                expected="mean and std in [0, 1] units",
                got=f"mean {list(means)}, std {list(stds)}",
                hint="Divide both by 255 if they are in 0-255 units, or by the span "
                "of the declared range.",
            )
        if any(not s > 0 for s in stds):
            raise ConfigError(
                "Auditor.std",
                expected="positive values",
                got=str(list(stds)),
                hint="Give the standard deviation per channel in [0, 1] units.",
            )
        return cls(means, stds)

    def check_channels(self, channels: int) -> None:
        """Refuse a mean that would silently turn one channel into three.

        Raises:
            ConfigError: Another number of values than channels.
        """
        if self.mean is not None and len(self.mean) not in (1, channels):
            raise ConfigError(
                "Auditor.mean",
                expected=f"1 or {channels} values for images of {channels} channel(s)",
                got=str(len(self.mean)),
                hint="Give one mean and one std per channel.",
            )

    def apply(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1] → model input, shape (batch, channels, height, width)."""
        if self.mean is None or self.std is None:
            return pixels
        return (pixels - _column(self.mean, pixels)) / _column(self.std, pixels)

    def invert(self, inputs: Tensor) -> Tensor:
        """Model input → pixels."""
        if self.mean is None or self.std is None:
            return inputs
        return inputs * _column(self.std, inputs) + _column(self.mean, inputs)

    @property
    def is_identity(self) -> bool:
        """True for mean 0 and std 1, or none given."""
        return self.mean is None or (
            set(self.mean) == {0.0} and set(self.std or ()) == {1.0}
        )


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(torch.as_tensor(values, dtype=torch.float64).flatten().tolist())


def _column(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, -1, 1, 1)


def to_unit(images: Tensor, value_range: tuple[float, float]) -> Tensor:
    """Map images of a declared range to [0, 1].

    Raises:
        ConfigError: NaN, or values that do not fit the declared range.
    """
    low, high = value_range
    if not low < high:
        raise ConfigError(
            "value_range",
            expected="(low, high) with low < high",
            got=str(value_range),
            hint="Name the values of black and white.",
        )
    data = images.detach().float()
    refuse_nan(data)
    if data.numel() and (data.min() < low - 1e-3 or data.max() > high + 1e-3):
        raise _range_error(data, value_range)
    whole = not images.is_floating_point()
    if high > 1.0 and not whole and data.numel() and 0 < data.max() <= 1.0:
        raise _range_error(data, value_range)
    return ((data - low) / (high - low)).clamp(0, 1)


def _range_error(data: Tensor, value_range: tuple[float, float]) -> ConfigError:
    low, high = value_range
    return ConfigError(
        "images",
        expected=f"values over the range {low:g} to {high:g}",
        got=f"range {high:g} but min {float(data.min()):.2f}, "
        f"max {float(data.max()):.2f}",
        hint="Declare the range that the data really has: --range LOW HIGH, or "
        "value_range=(low, high).",
    )


def in_units(images: Tensor, value_range: tuple[float, float], where: str) -> Tensor:
    """Values as they are, where their type can reach the declared ends.

    Raises:
        ConfigError: No numbers, or a type too small for the range.
    """
    low, high = value_range
    plain = not images.is_complex() and images.dtype != torch.bool
    if plain and images.is_floating_point():
        return images.detach().float()
    least, most = _ends(images) if plain else (0, 0)
    if low >= least and high <= most:
        return images.detach().float()
    kind = str(images.dtype).removeprefix("torch.")
    raise ConfigError(
        where,
        expected=f"values over the declared range {low:g} to {high:g}",
        got=f"{kind}, which holds {least} to {most}" if plain else kind,
        hint="Declare the range that these data have, and audit images of one kind.",
    )


def _ends(images: Tensor) -> tuple[int, int]:
    """The least and the largest value of a whole-number type."""
    info = torch.iinfo(images.dtype)
    return int(info.min), int(info.max)


def from_range(images: Tensor, value_range: tuple[float, float]) -> tuple[Tensor, str]:
    """All images of a declared range in [0, 1], and a note that says so.

    Raises:
        ConfigError: Values outside, or so few of it used that the images would be
            black, and unrelated ones alike.
    """
    low, high = value_range
    pixels = to_unit(images, value_range)
    least, most = float(images.min()), float(images.max())
    if most > least and most - low < _FILLED * (high - low):
        raise ConfigError(
            "images",
            expected=f"values that fill the declared range {low:g} to {high:g}",
            got=f"values from {least:g} to {most:g}, below 1/16 of it",
            hint="Nearly black images all look alike, so that no score could tell a "
            "leak. Declare the range that the data have, such as 0 to 4095 for 12 "
            "bits; where the model takes other units, let the factory scale them.",
        )
    note = f"values {low:g} to {high:g} were mapped to [0, 1], as declared"
    return pixels, note


def refuse_nan(images: Tensor, first: int = 0) -> None:
    """Refuse images with NaN or infinite values, naming the first.

    Args:
        images: (batch, channels, height, width).
        first: Number of the first of them.
    """
    bad = (~images.flatten(1).isfinite()).any(1).nonzero().flatten().tolist()
    if bad:
        raise ConfigError(
            f"image {first + bad[0]}",
            expected="finite values",
            got="NaN or infinity"
            + (f" (also in {len(bad) - 1} more)" if bad[1:] else ""),
            hint="Mend or leave out this image.",
        )


def to_pixels(
    images: Tensor, normalisation: Normalisation
) -> tuple[Tensor, Normalisation, list[str]]:
    """Pixels in [0, 1]; images that are already normalised are mapped back."""
    low, high = float(images.min()), float(images.max())
    if low >= -_TOLERANCE and high <= 1 + _TOLERANCE:
        return images.clamp(0, 1), normalisation, []
    if normalisation.mean is None:
        raise _looks_normalised(low, high)
    pixels = normalisation.invert(images)
    if pixels.min() >= -1e-2 and pixels.max() <= 1 + 1e-2:
        note = "images were given normalised; mapped back to pixels with mean and std"
        return pixels.clamp(0, 1), normalisation, [note]
    if not normalisation.is_identity:
        raise _looks_normalised(float(pixels.min()), float(pixels.max()))
    # mean 0 and std 1 on purpose: the data's own range becomes the pixel range.
    span = high - low
    stated = Normalisation((-low / span,), (1 / span,))
    note = (
        f"images have the range [{low:.3g}, {high:.3g}]; scored as if that were [0, 1]"
    )
    return ((images - low) / span).clamp(0, 1), stated, [note]


def _looks_normalised(low: float, high: float) -> ConfigError:
    if low >= 0 and high > 16:
        return ConfigError(
            "images",
            expected="float pixels in [0, 1], or uint8",
            got=f"float in the range [{low:.1f}, {high:.1f}]",
            hint="Divide by the largest value that a pixel can have, such as 255, or "
            "declare the range: --range LOW HIGH, value_range=(low, high).",
        )
    return ConfigError(
        "images",
        expected="pixels in [0, 1]",
        got=f"input range [{low:.1f}, {high:.1f}] looks normalised",
        hint="Pass mean= and std= (or mean=0, std=1 on purpose).",
    )


def to_range(pixels: Tensor, value_range: tuple[float, float] | None) -> Tensor:
    """Pixels in [0, 1] in the units of a declared range, as a user would give them."""
    if value_range is None:
        return pixels
    low, high = value_range
    return pixels * (high - low) + low


def to_png(image: Tensor, bands: list[int] | None = None) -> bytes:
    """One image (channels, height, width) in [0, 1] as a PNG, rounded for show.

    Args:
        image: The image.
        bands: See :func:`privaudit.config.bands_of`; the report says which they are.
    """
    from PIL import Image

    array = (image.detach().cpu().clamp(0, 1) * 255).round().byte()
    chosen = array[[band - 1 for band in bands_of(bands, len(array))]]
    colours = chosen.expand(3, -1, -1)
    buffer = io.BytesIO()
    Image.fromarray(colours.permute(1, 2, 0).contiguous().numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def check_bands(chosen: Sequence[int] | None, channels: int) -> None:
    """Refuse bands that no picture of these images can have.

    Raises:
        ConfigError: Not one or three of them, or a number that is no band.
    """
    if chosen is None:
        return
    if len(chosen) not in (1, 3) or not all(1 <= b <= channels for b in chosen):
        raise ConfigError(
            "Auditor.shown_bands",
            expected=f"one or three numbers from 1 to {channels}",
            got=", ".join(map(str, chosen)) or "none",
            hint="Name the band for grey, or those for red, green and blue.",
        )
