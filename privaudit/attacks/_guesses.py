"""Images as free pixels: what is optimised, and how it becomes an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privaudit._pixels import Normalisation

BOX = 0.999
"""Pixels of 0 and 1 lie at this share of tanh's range: there it still has a slope."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """Normalised pixels, free to leave [0, 1].

    Attributes:
        start: (rows, C, H, W) in [0, 1].
        scale: From [0, 1] to normalised pixels: steps belong to those.
    """

    start: Tensor
    scale: Normalisation
    leaves: Sequence[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        leaf = self.scale.apply(self.start.detach()).clone().requires_grad_()
        object.__setattr__(self, "leaves", [leaf])

    def images(self, progress: float) -> Tensor:
        """See :class:`~privaudit.attacks._descend.Guess`."""
        return self.scale.invert(self.leaves[0])


@dataclass(frozen=True, eq=False)
class BoxedPixels:
    """``x = ½ + tanh(z / 2) / (2·0.999)``: pixels that stay in [0, 1] without a clamp.

    A clamp has no gradient at the bound, so that pixels that came there stay there. A
    step of z at grey is about one of a normalised pixel.
    Source: measured (docs/compute.md).

    Attributes:
        start: (rows, C, H, W) in [0, 1].
    """

    start: Tensor
    leaves: Sequence[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        inside = (2 * self.start.detach().clamp(0, 1) - 1) * BOX
        leaf = (2 * inside.atanh()).requires_grad_()
        object.__setattr__(self, "leaves", [leaf])

    def images(self, progress: float) -> Tensor:
        """See :class:`~privaudit.attacks._descend.Guess`."""
        return 0.5 + torch.tanh(self.leaves[0] / 2) / (2 * BOX)
