"""From images to features as one function, with its derivative in both directions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from privaudit.types import FeatureTarget

# torch annotates these in some versions and not in others.
_make_dual: Callable[..., Tensor] = forward_ad.make_dual
_unpack_dual: Callable[..., Any] = forward_ad.unpack_dual

_OF_DIFFERENCE = 1e-5
_OF_VALUES = 1e-6
"""How far a map may be from affine in float32: of what changes, of what is there."""
_STEP = 1e-2
"""Root mean square, in pixels, of the step of a central difference."""


@dataclass(frozen=True, eq=False)
class ImageMap:
    """What the device computes, as a function of images in [0, 1].

    Attributes:
        target: Model and cut.
        shape: (channels, height, width) of an image.
    """

    target: FeatureTarget
    shape: tuple[int, int, int]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        for tensor in (*self.target.model.parameters(), *self.target.model.buffers()):
            return tensor.device
        return torch.device("cpu")

    def __call__(self, images: Tensor) -> Tensor:
        """Features (batch, …) of ``images``, without a graph."""
        with torch.no_grad():
            return self._features(images).detach().float()

    def near(self, images: Tensor) -> Tangent:
        """The map and its derivative at ``images``."""
        leaf = images.detach().clone().requires_grad_()
        with torch.enable_grad():
            return Tangent(self, leaf, self._features(leaf))

    def _features(self, images: Tensor) -> Tensor:
        return self.target.exposure.predict(self.target.model, images)


@dataclass(eq=False)
class Tangent:
    """The affine map that touches an :class:`ImageMap` at some images.

    Attributes:
        map: The map.
        images: (batch, channels, height, width), with a graph behind ``output``.
        output: Features of ``images``.
        by_difference: True once an operator turned out to have no forward derivative.
    """

    map: ImageMap
    images: Tensor
    output: Tensor
    by_difference: bool = False

    @property
    def value(self) -> Tensor:
        """Features of the images, (batch, …)."""
        return self.output.detach()

    def forward(self, direction: Tensor) -> Tensor:
        """Derivative along ``direction`` (as the images), in features."""
        if not self.by_difference:
            try:
                return self._forward_mode(direction)
            except RuntimeError:
                # An operator without one; anything else shows itself right below.
                self.by_difference = True
        size = direction.flatten(1).pow(2).mean(1).sqrt().clamp_min(1e-30)
        scale = _STEP / size.view(-1, 1, 1, 1)
        ahead, behind = (
            self.map(self.images.detach() + sign * scale * direction)
            for sign in (1, -1)
        )
        return (ahead - behind) / (2 * scale.view(-1, *[1] * (ahead.dim() - 1)))

    def _forward_mode(self, direction: Tensor) -> Tensor:
        with warnings.catch_warnings(), torch.no_grad(), forward_ad.dual_level():
            # torch scripts some formulas on first use, and warns of it.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            dual = _make_dual(self.images.detach(), direction)
            moved: Tensor | None = _unpack_dual(self.map._features(dual)).tangent
        return torch.zeros_like(self.output) if moved is None else moved.detach()

    def backward(self, weights: Tensor) -> Tensor:
        """Transposed derivative: ``weights`` (as the features) to pixels."""
        found: Sequence[Tensor | None] = torch.autograd.grad(
            self.output, self.images, weights, retain_graph=True, allow_unused=True
        )
        given: Tensor = torch.zeros_like(self.images) if found[0] is None else found[0]
        return given


def sizes(values: Tensor) -> Tensor:
    """Euclidean norm of each of a batch, (batch,)."""
    norms: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms


def is_affine(image_map: ImageMap, generator: torch.Generator) -> bool:
    """Whether features of the mean of two images are the mean of their features.

    Tried on noise and on coarse blocks, which a rectifier treats differently.
    """
    fine, coarse = random_images(image_map, generator)
    triple = image_map(torch.cat([fine, coarse, (fine + coarse) / 2]))
    first, second, middle = (part.double() for part in torch.split(triple, 1))
    gap = (middle - (first + second) / 2).norm()
    room = _OF_DIFFERENCE * (first - second).norm()
    return bool(gap <= room + _OF_VALUES * middle.norm())


def random_images(
    image_map: ImageMap, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Noise, and blocks of plain colour: (1, channels, height, width) each."""
    channels, height, width = image_map.shape
    fine = torch.rand(1, channels, height, width, generator=generator)
    blocks = torch.rand(1, channels, 4, 4, generator=generator)
    coarse = F.interpolate(blocks, (height, width), mode="nearest")
    return fine.to(image_map.device), coarse.to(image_map.device)
