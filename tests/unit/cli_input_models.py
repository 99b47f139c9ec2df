"""Written to disk as ``model.py``: models of other inputs than RGB pictures."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Patches(nn.Module):
    """States how many channels it takes, and leaks at batch size 1 in closed form."""

    def __init__(self, channels: int, side: int = 32, patch: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = 24  # more than there are patches
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(torch.randn(1, (side // patch) ** 2, width))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(F.gelu(self.drop(tokens)).mean(1))  # type: ignore[no-any-return]


def one() -> nn.Module:
    return Patches(1)


def two() -> nn.Module:
    return Patches(2)


def four() -> nn.Module:
    return Patches(4)


def thirteen() -> nn.Module:
    return Patches(13)


def linear(values: int = 13 * 32 * 32) -> nn.Module:
    """Does not state its channels: the first layer sees a flat vector."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(values, 32), nn.GELU(), nn.Linear(32, 4)
    )


def tiny() -> nn.Module:
    return linear(3 * 8 * 8)


def tiny_grey() -> nn.Module:
    return Patches(1, side=8, patch=4)


class Normed(nn.Module):
    """Batch normalisation on a flat vector: one image in train mode is an error."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(192, 16), nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.norm(self.first(x.flatten(1)))))  # type: ignore[no-any-return]


def normed() -> nn.Module:
    return Normed().eval()


class Segments(Patches):
    """A class for each pixel."""

    def __init__(self) -> None:
        super().__init__(1)
        self.head = nn.Linear(self.patches.out_channels, 3 * 8 * 8)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        pixels = self.head(F.gelu(self.drop(tokens))).transpose(1, 2)
        return F.fold(pixels, (32, 32), 8, stride=8)


def segments() -> nn.Module:
    return Segments()


def step(model: nn.Module, images: Tensor, masks: Tensor | None) -> Tensor:
    """Needs the very model class of this file, and masks; 255 is not counted."""
    assert isinstance(model, Segments)
    assert masks is not None
    return F.cross_entropy(model(images), masks, ignore_index=255)


def no_step() -> Tensor:
    raise AssertionError("never called")


not_a_function = 3
