"""Small models and steps that the recording tests share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._controls import shipped_images

SHAPE = (3, 16, 16)


def mlp(p: float = 0.5, *, bias: bool = True, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(3 * 16 * 16, 32, bias=bias),
            nn.GELU(),
            nn.Dropout(p),
            nn.Linear(32, 10, bias=bias),
        )


def conv(p: float = 0.3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Dropout(p),
            nn.Linear(4 * 8 * 8, 10),
        )


def batch(count: int = 1) -> tuple[Tensor, Tensor]:
    return shipped_images(max(count, 2), SHAPE)[:count], torch.arange(count) + 3


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def backward(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    loss = F.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def plain_gradient(
    model: nn.Module, images: Tensor, labels: Tensor, *, seed: int = 1
) -> dict[str, Tensor]:
    """What autograd says, without any recording."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        loss = F.cross_entropy(model(images), labels)
    names = dict(model.named_parameters())
    return dict(
        zip(names, torch.autograd.grad(loss, list(names.values())), strict=True)
    )
