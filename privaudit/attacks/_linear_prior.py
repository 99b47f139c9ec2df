"""What photographs are like, as a sum of squares: smooth, with edges, within [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_TYPICAL = 0.05
"""Difference of neighbouring pixels in photographs, in [0, 1] units."""
_EDGE = 0.01
"""Below this a difference counts as noise, squared; above it by its size."""
_BEYOND = 0.02
"""How far a pixel may lie outside of [0, 1], as a standard deviation."""


@dataclass(frozen=True, eq=False)
class QuadraticPrior:
    """Total variation and a box around pixels, as squares that touch them at an image.

    ``Σ across·(∂x)² + Σ down·(∂y)² + Σ held·(x - bound)²``

    Attributes:
        across: Weights of the differences to the right neighbour.
        down: Weights of those to the one below.
        held: (batch, channels, height, width): weights of pixels that were outside.
        bound: The nearest value inside.

    Source: Rudin 1992 (total variation); Chambolle 1997 (weights).
    """

    across: Tensor
    down: Tensor
    held: Tensor
    bound: Tensor

    @classmethod
    def even(cls, images: Tensor) -> QuadraticPrior:
        """All differences alike, and no box: where nothing is known yet."""
        pairs = [torch.full_like(images.diff(dim=d), _TYPICAL**-2) for d in (-1, -2)]
        return cls(pairs[0], pairs[1], torch.zeros_like(images), images)

    @classmethod
    def at(cls, images: Tensor) -> QuadraticPrior:
        """So that squares cost what the sizes of these differences cost."""
        sizes = [(images.diff(dim=d).square() + _EDGE**2).sqrt() for d in (-1, -2)]
        bound = images.clamp(0, 1)
        held = (images != bound) * _BEYOND**-2
        weights = [1 / (_TYPICAL * size) for size in sizes]
        return cls(weights[0], weights[1], held.to(images), bound)

    def pull(self, images: Tensor) -> Tensor:
        """Half the gradient of the sum at ``images``."""
        return self.curve(images) - self.held * self.bound

    def curve(self, direction: Tensor) -> Tensor:
        """Half the second derivative of the sum, times ``direction``."""
        wide = self.across * direction.diff(dim=-1)
        high = self.down * direction.diff(dim=-2)
        pulled = F.pad(wide, (1, 0)) - F.pad(wide, (0, 1))
        pulled = pulled + F.pad(high, (0, 0, 1, 0)) - F.pad(high, (0, 0, 0, 1))
        return pulled + self.held * direction

    def stiffness(self) -> Tensor:
        """Half the second derivative by each pixel alone."""
        total = F.pad(self.across, (1, 0)) + F.pad(self.across, (0, 1))
        total = total + F.pad(self.down, (0, 0, 1, 0)) + F.pad(self.down, (0, 0, 0, 1))
        return total + self.held
