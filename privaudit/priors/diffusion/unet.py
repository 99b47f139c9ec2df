"""The noise predictor of the embedded priors: a small U-Net for images of any size.

Our own and not a library's, so that a plain installation can run the attack.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 8


class UNet(nn.Module):
    """Noisy images and their step → what training asked for, of the same shape.

    Pixels are folded into channels first (2×2); each level then halves the sides.
    There is no attention: what it learnt at one size it does at another.
    Source: Ho 2020, appendix B, without attention; Shi 2016 for the folding.

    Args:
        channels: Of an image.
        widths: Channels of each level.
        time_width: Of the embedding of the step.
    """

    FOLD = 2

    def __init__(
        self, channels: int, widths: tuple[int, ...], time_width: int = 256
    ) -> None:
        super().__init__()
        self.widths = widths
        self.time = TimeEmbedding(time_width)
        folded = channels * self.FOLD**2
        self.enter = nn.Conv2d(folded, widths[0], 3, padding=1)
        self.down = nn.ModuleList(Block(w, w, time_width) for w in widths)
        self.shrink = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths)
        )
        self.middle = Block(widths[-1], widths[-1], time_width)
        self.up = nn.ModuleList(Block(2 * w, w, time_width) for w in widths)
        self.grow = nn.ModuleList(
            nn.Conv2d(b, a, 3, padding=1) for a, b in pairwise(widths)
        )
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, widths[0]),
            nn.SiLU(),
            nn.Conv2d(widths[0], folded, 3, padding=1),
        )

    @property
    def multiple(self) -> int:
        """Sides are padded to a multiple of it."""
        return int(self.FOLD * 2 ** (len(self.widths) - 1))

    def forward(self, noisy: Tensor, step: Tensor) -> Tensor:
        """Predict.

        Args:
            noisy: (batch, channels, height, width), about unit variance.
            step: (batch,), from 0 (clean) to 999 (noise).
        """
        height, width = noisy.shape[-2:]
        padded = _padded(noisy, self.multiple)
        time = self.time(step)
        x = self.enter(F.pixel_unshuffle(padded, self.FOLD))
        skips = []
        for level, block in enumerate(self.down):
            x = block(x, time)
            skips.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
        x = self.middle(x, time)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([x, skips[level]], 1), time)
            if level:
                x = self.grow[level - 1](F.interpolate(x, scale_factor=2.0))
        out: Tensor = F.pixel_shuffle(self.leave(x), self.FOLD)
        return out[..., :height, :width]


class Block(nn.Module):
    """Two convolutions around a shift and a scale that the step chooses."""

    def __init__(self, before: int, after: int, time_width: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.shift = nn.Linear(time_width, 2 * after)
        self.norm2 = nn.GroupNorm(GROUPS, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(batch, before, …) and (batch, time_width) → (batch, after, …)."""
        scale, shift = self.shift(time)[..., None, None].chunk(2, 1)
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = self.norm2(hidden) * (1 + scale) + shift
        out: Tensor = self.conv2(F.silu(hidden)) + self.skip(x)
        return out


class TimeEmbedding(nn.Module):
    """Steps as sines of many periods, then two layers. Source: Ho 2020."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.waves = width // 4
        self.layers = nn.Sequential(
            nn.Linear(2 * self.waves, width), nn.SiLU(), nn.Linear(width, width)
        )

    def forward(self, step: Tensor) -> Tensor:
        """(batch,) → (batch, width)."""
        rates = torch.arange(float(self.waves), device=step.device) / self.waves
        angles = step.float()[:, None] * torch.exp(-math.log(10_000.0) * rates)
        sines = torch.cat([angles.cos(), angles.sin()], 1)
        out: Tensor = F.silu(self.layers(sines))
        return out


def _padded(images: Tensor, multiple: int) -> Tensor:
    """Repeat the border until both sides are a multiple."""
    bottom, right = (-side % multiple for side in images.shape[-2:])
    return F.pad(images, (0, right, 0, bottom), mode="replicate")
