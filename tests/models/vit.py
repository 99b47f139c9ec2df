"""A small vision transformer with switches for everything that a form asks about."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Kind:
    """What the transformer is like.

    Attributes:
        channels: Of the image.
        height: Of the image.
        width: Of the image.
        patch: Side of the kernel.
        stride: Of the kernel; smaller than ``patch`` overlaps.
        padding: Of the convolution.
        linear: Cuts patches by reshaping, and embeds them with a linear layer.
        bias: Of the patch embedding.
        tokens: ``cls``, or ``mean`` without a class token.
        registers: Extra tokens behind the class token, without a position.
        position: ``learned``, ``frozen``, or ``sincos``.
        p: Everywhere but behind the embedding.
        p_embed: Behind the embedding.
        p_patch: On the patches, before the position is added.
        separate: Query, key and value in layers of their own.
        size: Width of a token.
    """

    channels: int = 3
    height: int = 16
    width: int = 16
    patch: int = 4
    stride: int = 4
    padding: int = 0
    linear: bool = False
    bias: bool = True
    tokens: str = "cls"
    registers: int = 0
    position: str = "learned"
    p: float = 0.3
    p_embed: float = 0.3
    p_patch: float = 0.0
    separate: bool = False
    size: int = 96

    @property
    def grid(self) -> tuple[int, int]:
        sides = (self.height, self.width)
        rows, columns = (
            (n + 2 * self.padding - self.patch) // self.stride + 1 for n in sides
        )
        return rows, columns


class Attention(nn.Module):
    """Four heads; the projections in one layer or in three."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.p, size = kind.p, kind.size
        count = 3 if kind.separate else 1
        self.parts = nn.ModuleList(
            nn.Linear(size, 3 * size // count) for _ in range(count)
        )
        self.out = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([part(x) for part in self.parts], -1)
        q, k, v = (
            t.unflatten(-1, (4, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
            for t in joined.chunk(3, -1)
        )
        p = self.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Pre-norm block."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        size = kind.size
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention, self.drop = Attention(kind), nn.Dropout(kind.p)
        self.mlp = nn.Sequential(
            nn.Linear(size, size), nn.GELU(), nn.Dropout(kind.p), nn.Linear(size, size)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class SmallViT(nn.Module):
    """As its :class:`Kind` says; three blocks, ten classes."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind, size = kind, kind.size
        values = kind.channels * kind.patch**2
        if kind.linear:
            self.patch: nn.Module = nn.Linear(values, size, bias=kind.bias)
        else:
            self.patch = nn.Conv2d(
                kind.channels, size, kind.patch, kind.stride, kind.padding,
                bias=kind.bias,
            )  # fmt: skip
        self.first = nn.Parameter(torch.randn(1, 1, size))
        self.extra = nn.Parameter(torch.randn(1, kind.registers, size))
        count = kind.grid[0] * kind.grid[1] + (kind.tokens == "cls")
        if kind.position == "sincos":
            self.register_buffer("position", sincos(count, size))
        else:
            self.position = nn.Parameter(torch.randn(1, count, size))
            self.position.requires_grad_(kind.position == "learned")
        self.drop_patch, self.drop = nn.Dropout(kind.p_patch), nn.Dropout(kind.p_embed)
        self.layers = nn.Sequential(*(Layer(kind) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 10)

    @property
    def first_layer(self) -> Layer:
        """The block that the attention form reads."""
        found = self.layers[0]
        assert isinstance(found, Layer)
        return found

    def embed(self, x: Tensor) -> Tensor:
        if not self.kind.linear:
            return self.patch(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]
        side = self.kind.patch
        cut = x.unfold(2, side, side).unfold(3, side, side)
        return self.patch(cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.drop_patch(self.embed(x))
        if self.kind.tokens == "cls":
            tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1)
        tokens = tokens + self.position
        if self.kind.registers:
            extra = self.extra.expand(len(x), -1, -1)
            tokens = torch.cat([tokens[:, :1], extra, tokens[:, 1:]], 1)
        tokens = self.norm(self.layers(self.drop(tokens)))
        pooled = tokens[:, 0] if self.kind.tokens == "cls" else tokens.mean(1)
        return self.head(pooled)  # type: ignore[no-any-return]


def sincos(count: int, size: int) -> Tensor:
    """(1, count, size), as in Vaswani 2017, with frequencies that tell tokens apart."""
    at = torch.arange(count)[:, None] * 0.05 ** (torch.arange(size // 2) / (size // 2))
    return torch.cat([at.sin(), at.cos()], 1)[None]


def small_vit(**settings: object) -> SmallViT:
    """Build one, the world's generator put back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SmallViT(Kind(**settings))  # type: ignore[arg-type]
