"""Networks of a pipeline as priors: float32 in and out, at a size that they draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from privaudit.errors import ConfigError
from privaudit.priors.diffusion._half import in_precision, too_large
from privaudit.priors.diffusion._libraries import quiet
from privaudit.priors.diffusion.base import Shape


@dataclass(frozen=True, eq=False)
class NoisePredictor:
    """A U-Net, with the embedding of the empty prompt where it wants a prompt.

    Attributes:
        network: On its device, in ``dtype``.
        dtype: That it computes in.
        channels: Of its input; further ones of its output are a variance.
        prompt: (1, tokens, width), or None.
    """

    network: Any
    dtype: torch.dtype
    channels: int
    prompt: Tensor | None = None

    def __call__(self, noisy: Tensor, steps: Tensor) -> Tensor:
        """(batch, …) and (batch,) → what it predicts, float32.

        Raises:
            AttackError: It overflows in its precision.
        """
        words = {}
        if self.prompt is not None:
            words["encoder_hidden_states"] = self.prompt.expand(len(noisy), -1, -1)

        def run(entered: Tensor) -> Tensor:
            found: Tensor = self.network(entered, steps, **words).sample
            return found[:, : self.channels]

        output = in_precision(run, noisy, self.dtype)
        if self.dtype != torch.float32 and _breaks(noisy, output):
            raise too_large(self.dtype, "values of the U-Net")
        return output


@dataclass(eq=False)
class Autoencoder:
    """The encoder and decoder of latents; float32 from where lower precision breaks.

    Attributes:
        vae: On its device, in ``dtype``.
        dtype: That it computes in.
        canvas: Sizes that it draws.
        in_float32: Reads it anew: what was rounded once, or overflowed, stays so.
        notes: Where it says that it had to change.
    """

    vae: Any
    dtype: torch.dtype
    canvas: Canvas
    in_float32: Callable[[], Any]
    notes: list[str] = field(default_factory=list)

    def decode(self, latents: Tensor) -> Tensor:
        """z → images, [-1, 1] being black to white."""
        scale, shift = self._scaling()
        return self._run(
            lambda z: self.vae.decode(z / scale + shift).sample, latents, "decoder"
        )

    def encode(self, images: Tensor) -> Tensor:
        """Images of any size → the mean of their posterior."""
        scale, shift = self._scaling()
        return self._run(
            lambda x: (self.vae.encode(x).latent_dist.mean - shift) * scale,
            self.canvas.resized(images), "encoder",
        )  # fmt: skip

    def latent_shape(self, shape: Shape) -> Shape:
        """Of the latents of images of a shape."""
        _, height, width = self.canvas.shape(shape)
        factor = self.canvas.multiple
        return self.vae.config.latent_channels, height // factor, width // factor

    def _scaling(self) -> tuple[float, float]:
        own = self.vae.config
        return own.scaling_factor, getattr(own, "shift_factor", None) or 0.0

    def _run(
        self, function: Callable[[Tensor], Tensor], inputs: Tensor, part: str
    ) -> Tensor:
        output = in_precision(function, inputs, self.dtype)
        if self.dtype == torch.float32 or not _breaks(inputs, output):
            return output
        name = str(self.dtype).removeprefix("torch.")
        self.notes.append(
            f"the {part} of the prior gave no finite values in {name}: it runs in "
            "float32, slower and with more memory"
        )
        self.dtype = torch.float32
        with quiet():
            self.vae = self.in_float32()
        return in_precision(function, inputs, self.dtype)


@dataclass(frozen=True)
class Canvas:
    """Which images a prior can draw, and at which size it does.

    Attributes:
        where: For messages.
        channels: Of an image.
        multiple: Sides are multiples of it.
        longest: Side at which it draws; None: at the size that is asked for.
    """

    where: str
    channels: int
    multiple: int
    longest: int | None

    def __post_init__(self) -> None:
        if self.longest is not None and self.longest % self.multiple:
            raise ConfigError(
                f"{self.where}, resolution", expected=f"a multiple of {self.multiple}",
                got=str(self.longest), hint="Leave resolution out, or round it.",
            )  # fmt: skip

    def shape(self, shape: Shape) -> Shape:
        """(channels, height, width) as drawn for images of a shape.

        Raises:
            ConfigError: Images of so many channels it cannot draw.
        """
        channels, height, width = shape
        if channels != self.channels:
            raise ConfigError(
                self.where,
                expected=f"images of {self.channels} channel(s), as it draws",
                got=f"{channels} channel(s)",
                hint="Take a prior for such images, or train one: "
                "`privaudit prior train`.",
            )
        return channels, *self._sides(height, width)

    def _sides(self, height: int, width: int) -> tuple[int, int]:
        if self.longest is None:
            blocks = [math.ceil(side / self.multiple) for side in (height, width)]
        else:
            scale = self.longest / max(height, width) / self.multiple
            blocks = [max(1, round(side * scale)) for side in (height, width)]
        return blocks[0] * self.multiple, blocks[1] * self.multiple

    def resized(self, images: Tensor) -> Tensor:
        """(batch, C, …) at the size that is drawn."""
        channels, height, width = images.shape[1:]
        size = self.shape((channels, height, width))[1:]
        if images.shape[2:] == size:
            return images
        return F.interpolate(
            images, size, mode="bilinear", antialias=True, align_corners=False
        )


def _breaks(inputs: Tensor, outputs: Tensor) -> bool:
    """The function broke, not what it was given."""
    sound = bool(inputs.isfinite().all())
    return sound and not bool(outputs.isfinite().all())
