"""Untrained encoder–decoders with skips, one an image, all run together.

What such a network draws looks like an image before anything was learnt.
Source: Ulyanov 2018; sizes as Singh 2021 are run by Lei 2025 (their code).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

_SLOPE = 0.2
"""Of LeakyReLU below zero."""
_SMALLEST = 4
"""A map with a shorter side than this is not halved."""

_LARGE = 64
"""From this side on, :func:`halving` and :func:`doubling` are worth it (1.25 times)."""

Jitter = Sequence[tuple[float, float]]
"""(progress, standard deviation): until when how much noise is added to the input."""


Convolution = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Sizes:
    """What a network looks like.

    Attributes:
        inputs: Channels of the noise that it is fed.
        channels: Of each level, from the image inwards.
        kernels: Of each level, odd.
        skip: Channels that go past each level.
        outputs: Channels of the image.
    """

    inputs: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    skip: int
    outputs: int

    def fitting(self, height: int, width: int) -> Sizes:
        """As many levels as images of this size can be halved."""
        halvings = 1 + int(math.log2(max(1.0, min(height, width) / _SMALLEST)))
        kept = slice(0, halvings)
        return replace(self, channels=self.channels[kept], kernels=self.kernels[kept])


@dataclass(eq=False)
class Weights:
    """The weights of some networks by name, rows leading: those of one restart alike.

    Attributes:
        images: Networks of one restart.
        restarts: How many of these.
        generator: Draws one start a restart.
        device: Where they go.
    """

    images: int
    restarts: int
    generator: torch.Generator
    device: torch.device
    named: dict[str, Tensor] = field(default_factory=dict)

    def convolution(self, name: str, inputs: int, outputs: int, side: int) -> None:
        """A convolution, drawn as torch does it: uniform in ±1/√fan-in."""
        bound = 1 / math.sqrt(inputs * side * side)
        self._uniform(f"{name}.weight", (outputs, inputs, side, side), bound)
        self._uniform(f"{name}.bias", (outputs,), bound)

    def scale(self, name: str, channels: int) -> None:
        """Factor and offset behind a norm: 1 and 0."""
        self._add(f"{name}.gain", torch.ones(self.restarts, channels, 1, 1))
        self._add(f"{name}.shift", torch.zeros(self.restarts, channels, 1, 1))

    def _uniform(self, name: str, shape: tuple[int, ...], bound: float) -> None:
        drawn = torch.rand((self.restarts, *shape), generator=self.generator)
        self._add(name, (2 * drawn - 1) * bound)

    def _add(self, name: str, value: Tensor) -> None:
        rows = value.repeat_interleave(self.images, 0)
        self.named[name] = rows.to(self.device).requires_grad_()


@dataclass(frozen=True, eq=False)
class SkipNetworks:
    """One network a row, as a function from noise to images.

    Attributes:
        sizes: Of each network.
        weights: By name, rows leading.
    """

    sizes: Sizes
    weights: dict[str, Tensor]

    @classmethod
    def filled(cls, sizes: Sizes, weights: Weights) -> SkipNetworks:
        """Networks of these sizes, their weights drawn anew."""
        above = sizes.inputs
        for level, (own, side) in enumerate(
            zip(sizes.channels, sizes.kernels, strict=True)
        ):
            inner = own
            if level + 1 < len(sizes.channels):
                inner = sizes.channels[level + 1]
            units = [("skip", above, sizes.skip, 1), ("down", above, own, side)]
            units += [("deep", own, own, side), ("mix", own, own, 1)]
            units += [("up", sizes.skip + inner, own, side)]
            for name, inputs, outputs, kernel in units:
                weights.convolution(f"{level}.{name}", inputs, outputs, kernel)
                weights.scale(f"{level}.{name}", outputs)
            weights.scale(f"{level}.join", sizes.skip + inner)
            above = own
        weights.convolution("image", sizes.channels[0], sizes.outputs, 1)
        return cls(sizes, weights.named)

    def draw(self, fed: Tensor) -> Tensor:
        """(rows, outputs, H, W) in [0, 1] from ``fed``, (rows, inputs, H, W)."""
        return torch.sigmoid(self._convolved(self._level(fed, 0), "image"))

    def _level(self, x: Tensor, level: int) -> Tensor:
        """One level and all inside it: (rows, C, H, W) → (rows, channels, H, W)."""
        past = self._unit(x, f"{level}.skip")
        halved = self._halved(x, f"{level}.down")
        inner = F.leaky_relu(self._normed(halved, f"{level}.down"), _SLOPE)
        inner = self._unit(inner, f"{level}.deep")
        if level + 1 < len(self.sizes.channels):
            inner = self._level(inner, level + 1)
        drawn = self._normed(self._joined(past, inner, level), f"{level}.up")
        return self._unit(F.leaky_relu(drawn, _SLOPE), f"{level}.mix")

    def _halved(self, x: Tensor, name: str) -> Tensor:
        """Convolution, then the mean of each 2×2."""
        if not _is_large(x):
            return F.avg_pool2d(self._convolved(x, name), 2, ceil_mode=True)
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return _way(x)(x, halving(weight), bias, 2)

    def _joined(self, past: Tensor, inner: Tensor, level: int) -> Tensor:
        """``past`` beside ``inner`` twice as large, normalised, then a convolution."""
        skip, name = past.shape[1], f"{level}.join"
        if not _is_large(past):
            up = F.interpolate(inner, size=past.shape[-2:], mode="nearest")
            joined = self._normed(torch.cat([past, up], 1), name)
            return self._convolved(joined, f"{level}.up")
        weight, bias = (self.weights[f"{level}.up.{w}"] for w in ("weight", "bias"))
        past, inner = self._normed(past, name), self._normed(inner, name, skip)
        none = torch.zeros_like(bias).repeat_interleave(4, 1)
        phases = _way(inner)(inner, doubling(weight[:, :, skip:]), none, 1)
        beside = _way(past)(past, weight[:, :, :skip], bias, 1)
        return F.pixel_shuffle(phases, 2) + beside

    def _unit(self, x: Tensor, name: str) -> Tensor:
        """Convolution, norm, LeakyReLU."""
        return F.leaky_relu(self._normed(self._convolved(x, name), name), _SLOPE)

    def _normed(self, x: Tensor, name: str, first: int = 0) -> Tensor:
        """Each channel of each image to mean 0 and variance 1: batch norm of one."""
        even = F.layer_norm(x, x.shape[-2:])
        own = slice(first, first + x.shape[1])
        gain, shift = self.weights[f"{name}.gain"], self.weights[f"{name}.shift"]
        return even * gain[:, own] + shift[:, own]

    def _convolved(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return _way(x)(x, weight, bias, 1)


def _is_large(x: Tensor) -> bool:
    """Whether maps are large enough, and even: what is halved can be doubled."""
    height, width = x.shape[-2:]
    return min(height, width) >= _LARGE and not height % 2 and not width % 2


def halving(weight: Tensor) -> Tensor:
    """The kernels that, at stride 2, give the means of 2×2 behind ``weight``.

    Args:
        weight: (rows, outputs, C, side, side), odd sides.

    Returns:
        (rows, outputs, C, side + 1, side + 1).
    """
    wide = F.avg_pool2d(F.pad(weight, (1, 1, 1, 1)).flatten(0, 1), 2, 1)
    return wide.view(*weight.shape[:2], *wide.shape[1:])


def doubling(weight: Tensor) -> Tensor:
    """Kernels on a map whose shuffled pixels are ``weight`` on the map twice as large.

    Both pixels of a doubled pair read the same few pixels of the small map: taps that
    fall on one of them are added.

    Args:
        weight: (rows, outputs, C, side, side), odd sides.

    Returns:
        (rows, 4·outputs, C, small, small), for ``pixel_shuffle(…, 2)``.
    """
    side = weight.shape[-1]
    reach = (side // 2 + 1) // 2
    read = weight.new_zeros(2, side, 2 * reach + 1)
    for phase in range(2):
        for tap in range(side):
            read[phase, tap, (phase + tap - side // 2) // 2 + reach] = 1
    added = torch.einsum("rocij,pim,qjn->ropqcmn", weight, read, read)
    return added.flatten(1, 3)


def _way(x: Tensor) -> Convolution:
    """Grouped convolutions are up to five times slower on a CPU."""
    return one_by_one if x.device.type == "cpu" else grouped


def one_by_one(x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
    """Each image by its own kernel: (rows, C, H, W) → (rows, outputs, H, W).

    Args:
        x: (rows, C, H, W).
        weight: (rows, outputs, C, side, side).
        bias: (rows, outputs).
        stride: 1; 2 for kernels with an even side: the result is half as large.
    """
    edge = (weight.shape[-1] - 1) // 2
    each = zip(torch.split(x, 1), weight, bias, strict=True)
    return torch.cat(
        [F.conv2d(a, w, b, stride=stride, padding=edge) for a, w, b in each]
    )


def grouped(x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
    """As :func:`one_by_one`, in one call."""
    together = F.conv2d(
        x.flatten(0, 1)[None], weight.flatten(0, 1), bias.flatten(),
        stride=stride, padding=(weight.shape[-1] - 1) // 2, groups=len(x),
    )  # fmt: skip
    return together.view(len(x), -1, *together.shape[-2:])


@dataclass(frozen=True, eq=False)
class DrawnImages:
    """Images drawn by untrained networks: what is optimised are their weights.

    Attributes:
        networks: One a row.
        fed: (rows, inputs, H, W), the noise that they are fed, always the same.
        jitter: What is added to it while they run.
        generator: Draws that.
        restarts: Rows of one restart get the same jitter.
    """

    networks: SkipNetworks
    fed: Tensor
    jitter: Jitter
    generator: torch.Generator
    restarts: int

    @property
    def leaves(self) -> Sequence[Tensor]:
        """See :class:`~privaudit.attacks._descend.Guess`."""
        return list(self.networks.weights.values())

    def images(self, progress: float) -> Tensor:
        """See :class:`~privaudit.attacks._descend.Guess`."""
        std = next((s for until, s in self.jitter if progress < until), 0.0)
        if not std:
            return self.networks.draw(self.fed)
        added = rows_of_noise(self.fed, self.restarts, self.generator)
        return self.networks.draw(self.fed + std * added)


def rows_of_noise(like: Tensor, restarts: int, generator: torch.Generator) -> Tensor:
    """Standard normal noise of the shape of ``like``, one draw for all images.

    Every image of a restart gets the same, so that none depends on how many there are.
    """
    images = len(like) // restarts
    drawn = torch.randn((restarts, *like.shape[1:]), generator=generator)
    return drawn.repeat_interleave(images, 0).to(like)
