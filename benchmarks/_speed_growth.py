"""Along which axes the time of an iteration is measured."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks._speed_common import RATE, Build
from tests.models.dia import ViT, mlp


class PatchViT(ViT):
    """The ViT with other patches: 4 gives 65 tokens of a 32-pixel image, 8 gives 17."""

    def __init__(self, patch: int) -> None:
        super().__init__(RATE, channels=3, size=32)
        width = self.cls.shape[-1]
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, 1 + (32 // patch) ** 2, width))


def wide_mlp(width: int) -> nn.Module:
    """The MLP with hidden layers of another width."""
    layers: list[nn.Module] = [nn.Flatten()]
    before = 3 * 32 * 32
    for _ in range(3):
        layers += [nn.Linear(before, width, bias=False), nn.GELU(), nn.Dropout(RATE)]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, 10, bias=False))


@dataclass(frozen=True)
class Case:
    """One point on one axis."""

    axis: str
    value: int
    model: str
    build: Build
    victims: int = 1
    batch: int = 1
    iterations: int = 60


_MLP = functools.partial(mlp, RATE, channels=3, size=32)
GROWTH: tuple[Case, ...] = (
    *(Case("victims", n, "mlp", _MLP, victims=n) for n in (1, 4, 16, 64)),
    *(Case("batch", n, "mlp", _MLP, batch=n) for n in (1, 4, 16)),
    *(
        Case("width", n, "mlp", functools.partial(wide_mlp, n))
        for n in (256, 512, 1024)
    ),
    *(
        Case("patch", n, "vit", functools.partial(PatchViT, n), iterations=20)
        for n in (8, 4)
    ),
)
