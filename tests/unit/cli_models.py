"""Written to disk as ``model.py``: the models that the command line is tried on."""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(p: float = 0.5) -> nn.Module:
    """Leaks at batch size 1: a first linear layer with bias, dropout behind it."""
    torch.manual_seed(0)
    first = nn.Linear(3 * 32 * 32, 32)
    return nn.Sequential(
        nn.Flatten(), first, nn.GELU(), nn.Dropout(p), nn.Linear(32, 4)
    )


def same_but_named() -> nn.Module:
    """Its own names start with a wrapper's prefix."""
    return nn.ModuleDict({"module": nn.Linear(2, 2)})


def grey() -> nn.Module:
    """Takes one channel."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(1800, 4))


def conv() -> nn.Module:
    """No closed form reads a batch out of it."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(900, 4)
    )


def dead() -> nn.Module:
    """A head of zeros: nothing behind it has a gradient."""
    model = mlp()
    nn.init.zeros_(model[4].weight)  # type: ignore[index]
    return model


class Functional(nn.Module):
    """Dropout without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layer(x.flatten(1)), 0.25, self.training)


class Leaves(Functional):
    """Ends the process in the middle of a step, with the code that means a leak."""

    def forward(self, x: Tensor) -> Tensor:
        sys.exit(1)


class Slow(Functional):
    """Says when its step has begun, and takes its time."""

    def forward(self, x: Tensor) -> Tensor:
        Path("started").touch()
        time.sleep(60)
        return super().forward(x)


class NotASquare(Functional):
    """Takes other images than the ones at hand."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :, :16])


def needs_an_argument(width: int) -> nn.Module:
    return nn.Linear(width, 2)


def raises() -> nn.Module:
    raise FileNotFoundError("weights of the teacher")


def leaves() -> nn.Module:
    sys.exit(0)


def no_module() -> str:
    return "a model"
