"""Images as sums of waves: large steps for slow waves, small ones for quick ones.

Adam takes steps of one length for every unknown. In pixels that is a step of white
noise, which natural images do not look like; in waves whose length is weighed by 1/f it
is one of the spectrum that they have. Source: Olah 2017 (decorrelated parametrisation);
the spectrum of natural images: Field 1987, and f·|F| of ours is even to a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

SPREAD = 0.14
"""Of a pixel in [0, 1], per unit of all waves."""
COLOURS = ((1.0, 0.36, 0.10), (1.0, 0.0, -0.21), (1.0, -0.36, 0.11))
"""Columns: brightness and two colours, uncorrelated in photographs, each as large as it
is there (measured on 1,000; the second and third of CIFAR-10 are the same)."""


@dataclass(frozen=True, eq=False)
class Waves:
    """``x = start + s · C · F⁻¹(z / f)``, free to leave [0, 1].

    Attributes:
        start: (rows, C, H, W) in [0, 1].
        waves: (rows, C, H, W // 2 + 1, 2), real and imaginary parts to begin with.
        leaves: The waves as they are moved.
    """

    start: Tensor
    waves: Tensor
    leaves: Sequence[Tensor] = field(init=False)
    _lengths: Tensor = field(init=False)

    def __post_init__(self) -> None:
        leaf = self.waves.detach().clone().requires_grad_()
        object.__setattr__(self, "leaves", [leaf])
        lengths = spectrum(*self.start.shape[-2:]).to(self.start)
        object.__setattr__(self, "_lengths", lengths)

    def images(self, progress: float) -> Tensor:
        """See :class:`~privaudit.attacks._descend.Guess`."""
        size = self.start.shape[-2:]
        waves = torch.view_as_complex(self.leaves[0]) * self._lengths
        added = torch.fft.irfft2(waves, s=size, norm="ortho")
        if added.shape[1] == len(COLOURS):
            added = torch.einsum("ij,njhw->nihw", added.new_tensor(COLOURS), added)
        images: Tensor = self.start + SPREAD * added
        return images


def shape_of_waves(channels: int, height: int, width: int) -> tuple[int, ...]:
    """Of the waves of one image."""
    return (channels, height, width // 2 + 1, 2)


def spectrum(height: int, width: int) -> Tensor:
    """(height, width // 2 + 1): 1/f, its root mean square 1; f = 0 as the slowest."""
    down = torch.fft.fftfreq(height)[:, None]
    across = torch.fft.rfftfreq(width)[None]
    frequency = (down.square() + across.square()).sqrt()
    lengths: Tensor = 1 / frequency.clamp_min(1 / max(height, width))
    lengths /= lengths.square().mean().sqrt()
    return lengths
