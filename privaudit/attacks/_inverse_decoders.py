"""Networks from features to images: a transformer for tokens, convolutions for maps."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from privaudit.types import FeatureLayout

_START_SIDE = 4
"""Shorter side of the map that a vector is unfolded to."""


def decoder_for(
    layout: FeatureLayout,
    feature_shape: tuple[int, ...],
    image_shape: tuple[int, int, int],
    *,
    width: int,
    layers: int,
    generator: torch.Generator,
) -> nn.Module:
    """A decoder with fresh weights for features of this kind.

    Args:
        layout: Which axis is what.
        feature_shape: Of one image's features.
        image_shape: (channels, height, width).
        width: Channels inside.
        layers: Transformer blocks, or residual blocks at the features' resolution.
        generator: Draws the weights.
    """
    with torch.device("meta"):  # so that nothing is drawn from the world's generator
        network: nn.Module
        if layout.kind == "tokens" and layout.grid is not None:
            network = TokenDecoder(layout, feature_shape, image_shape, width, layers)
        else:
            network = MapDecoder(layout, feature_shape, image_shape, width, layers)
    network = network.to_empty(device="cpu")
    _draw(network, generator)
    return network


def _draw(network: nn.Module, generator: torch.Generator) -> None:
    """Normal weights of variance 2 / (fan-in + fan-out), or .02 for tokens; norms 1."""
    with torch.no_grad():
        for name, value in network.named_parameters():
            if name.endswith(("position", "mask_token")):
                value.normal_(std=0.02, generator=generator)
            elif value.dim() > 1:
                inside = math.prod(value.shape[2:])
                fans = (value.shape[0] + value.shape[1]) * inside
                value.normal_(std=math.sqrt(2 / fans), generator=generator)
            else:
                value.fill_(1.0 if name.endswith("norm.weight") else 0.0)


class _Block(nn.Module):
    """Pre-norm transformer block, (batch, tokens, width) → the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mix(self.first_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        wide = F.gelu(self.wide(self.second_norm(x)))
        return x + self.narrow(wide)  # type: ignore[no-any-return]


class TokenDecoder(nn.Module):
    """Tokens → patches of pixels, as a masked autoencoder's decoder does it.

    Prefix tokens are read as well, and give no patch. Source: He 2022, as Lei 2025 use
    it (section 4.4).
    """

    def __init__(
        self,
        layout: FeatureLayout,
        feature_shape: tuple[int, ...],
        image_shape: tuple[int, int, int],
        width: int,
        layers: int,
    ) -> None:
        super().__init__()
        tokens, size = feature_shape
        self.prefix, self.grid = layout.prefix_tokens, layout.grid or (1, tokens)
        channels, *self.size = image_shape
        sides = zip(self.size, self.grid, strict=True)
        self.patch = [-(-pixels // patches) for pixels, patches in sides]
        heads = next(h for h in (8, 4, 2, 1) if width % h == 0 and width // h >= 8)
        self.embed = nn.Linear(size, width)
        self.position = nn.Parameter(torch.empty(1, tokens, width))
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.pixels = nn.Linear(width, channels * self.patch[0] * self.patch[1])

    def forward(self, features: Tensor, masked: Tensor | None = None) -> Tensor:
        """(batch, tokens, channels) → (batch, C, H, W) of any range.

        Args:
            features: Tokens.
            masked: (batch, tokens), True where a token is replaced; None: nowhere.
        """
        x = self.embed(features)
        if masked is not None:
            x = torch.where(masked[..., None], self.mask_token, x)
        x = self.norm(self.blocks(x + self.position))
        return self._unpatched(self.pixels(x[:, self.prefix :]))

    def _unpatched(self, patches: Tensor) -> Tensor:
        rows, columns = self.grid
        down, across = self.patch
        split = patches.unflatten(1, (rows, columns)).unflatten(-1, (-1, down, across))  # type: ignore[no-untyped-call]
        image = split.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return _resized(image, self.size)


class _Residual(nn.Module):
    """Two convolutions beside an identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(_groups(width), width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(self.norm(x))))  # type: ignore[no-any-return]


class MapDecoder(nn.Module):
    """A map, or a vector unfolded to one, → an image: convolutions, each level doubled.

    Source: He 2019, with residual blocks.
    """

    def __init__(
        self,
        layout: FeatureLayout,
        feature_shape: tuple[int, ...],
        image_shape: tuple[int, int, int],
        width: int,
        layers: int,
    ) -> None:
        super().__init__()
        channels, *self.size = image_shape
        self.kind, self.unfold = layout.kind, None
        inside, sides = width, _start(self.size)
        if layout.kind == "nchw":
            inside, sides = feature_shape[0], list(feature_shape[1:])
        elif layout.kind == "nhwc":
            inside, sides = feature_shape[-1], list(feature_shape[:-1])
        else:
            self.unfold = nn.Linear(
                math.prod(feature_shape), width * sides[0] * sides[1]
            )
        self.sides = sides
        ratio = max(size / side for size, side in zip(self.size, sides, strict=True))
        doublings = max(0, math.ceil(math.log2(ratio)))
        widths = [max(16, width >> level) for level in range(doublings + 1)]
        self.enter = nn.Conv2d(inside, width, 3, padding=1)
        self.blocks = nn.Sequential(*(_Residual(width) for _ in range(layers)))
        self.levels = nn.ModuleList(
            nn.Sequential(nn.Conv2d(wide, narrow, 3, padding=1), _Residual(narrow))
            for wide, narrow in itertools.pairwise(widths)
        )
        self.pixels = nn.Conv2d(widths[-1], channels, 3, padding=1)

    def forward(self, features: Tensor, masked: Tensor | None = None) -> Tensor:
        """Features of any kind → (batch, C, H, W) of any range; nothing is masked."""
        x = features.permute(0, 3, 1, 2) if self.kind == "nhwc" else features
        if self.unfold is not None:
            x = self.unfold(features.flatten(1)).unflatten(1, (-1, *self.sides))
        x = self.blocks(self.enter(x))
        for index, level in enumerate(self.levels):
            last = index + 1 == len(self.levels)
            size = self.size if last else [2 * n for n in x.shape[-2:]]
            x = level(F.interpolate(x, size=size, mode="nearest"))
        return _resized(self.pixels(F.gelu(x)), self.size)


def _start(size: list[int]) -> list[int]:
    """Rows and columns of the map that a vector becomes: the image's proportions."""
    short = min(size)
    return [max(1, round(_START_SIDE * n / short)) for n in size]


def _groups(width: int) -> int:
    return next(g for g in (8, 4, 2, 1) if width % g == 0)


def _resized(image: Tensor, size: list[int]) -> Tensor:
    """The image at the model's input size, where patches or maps do not give it."""
    if list(image.shape[-2:]) == size:
        return image
    return F.interpolate(image, size=size, mode="bilinear", antialias=True)
