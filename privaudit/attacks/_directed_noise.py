"""Noise of guided diffusion: where it comes from, and how a gradient turns it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
TINY = 1e-8


@dataclass(eq=False)
class Noise:
    """Normal draws: images of one restart get the same, so none depends on another.

    Attributes:
        generator: On the CPU.
        images: Searched together.
        restarts: Of each.
    """

    generator: torch.Generator
    images: int
    restarts: int

    def draw(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """(restarts · images, *shape), all images of one restart, then of the next."""
        drawn = torch.randn((self.restarts, 1, *shape), generator=self.generator)
        wide = drawn.expand(-1, self.images, *[-1] * len(shape))
        return wide.reshape(-1, *shape).to(like)


@dataclass(eq=False)
class Moments:
    """Adam's moments; the answer is a direction, no step is taken."""

    mean: Tensor | None = None
    square: Tensor | None = None
    count: int = 0

    def update(self, gradient: Tensor) -> Tensor:
        if self.mean is None or self.square is None:
            self.mean = torch.zeros_like(gradient)
            self.square = torch.zeros_like(gradient)
        self.count += 1
        first, second = BETAS
        self.mean = first * self.mean + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient.square()
        mean = self.mean / (1 - first**self.count)
        square = self.square / (1 - second**self.count)
        return mean / (square.sqrt() + TINY)


def clipped(gradient: Tensor, largest: float) -> Tensor:
    """Each row's gradient, its norm at most ``largest``."""
    norms = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    factor = (largest / (norms + TINY)).clamp(max=1)
    return gradient * _over(factor, gradient)


def unit(vectors: Tensor) -> Tensor:
    """Each row at norm 1; a row of zeros stays zero."""
    norms = torch.linalg.vector_norm(vectors.flatten(1), dim=1)
    return vectors / _over(norms.clamp_min(1e-30), vectors)


def directed_noise(
    drawn: Tensor,
    gradient: Tensor,
    *,
    sigma: float,
    weight: float,
    mix: Literal["lerp", "slerp"] = "lerp",
) -> Tensor:
    """Noise of norm r = √n·σ_t in each row, turned against the gradient.

    r · unit((1 − w)·σ_t·ε − w·r·unit(g̃)), to be added as it is. ``slerp`` goes the
    same way along the sphere.
    Source: Lei 2025, eq. 8 (Yang 2024), with the sign of a descent.

    Args:
        drawn: ε, (rows, …), standard normal.
        gradient: g̃, of the same shape.
        sigma: σ_t; 0 gives zeros.
        weight: w, from 0 (the noise alone) to 1 (the gradient alone).
        mix: Along the chord or along the sphere.
    """
    radius = math.sqrt(drawn[0].numel()) * sigma
    if not sigma:
        return torch.zeros_like(drawn)
    down = -unit(gradient)
    if mix == "lerp":
        return radius * unit((1 - weight) * sigma * drawn + weight * radius * down)
    along = unit(drawn)
    cosine = (along * down).flatten(1).sum(1).clamp(-1 + 1e-6, 1 - 1e-6)
    angle = torch.arccos(cosine).view(-1, *[1] * (drawn.dim() - 1))
    turned = (torch.sin((1 - weight) * angle) * along
              + torch.sin(weight * angle) * down)  # fmt: skip
    return radius * unit(turned)


def _over(per_row: Tensor, like: Tensor) -> Tensor:
    """``per_row`` in a shape that broadcasts over ``like``."""
    return per_row.view(-1, *[1] * (like.dim() - 1))
