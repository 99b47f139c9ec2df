"""The models of Scheliga 2023, built from the paper's description.

All are drawn at random, as in the paper: nothing here is trained.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(
    p: float, *, channels: int = 3, size: int = 32, bias: bool = False
) -> nn.Module:
    """3 x 512, Linear → GELU → Dropout, and a linear classifier of 10 classes."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = channels * size * size
    for _ in range(3):
        layers += [nn.Linear(width, 512, bias=bias), nn.GELU(), nn.Dropout(p)]
        width = 512
    return nn.Sequential(*layers, nn.Linear(width, 10, bias=bias))


def lenet(p: float, *, channels: int = 3, size: int = 32) -> nn.Module:
    """Zhao 2020: 12-channel 5x5 convolutions, sigmoid, parameters U(-.5, .5)."""
    side = -(-size // 4)
    model = nn.Sequential(
        nn.Conv2d(channels, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, stride=1),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Dropout(p),
        nn.Linear(12 * side * side, 10),
    )
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


class ViT(nn.Module):
    """Patch 4, depth 4, 16 heads, width 256, MLP width 256, class token."""

    def __init__(self, p: float, *, channels: int = 3, size: int = 32) -> None:
        super().__init__()
        width, patch = 256, 4
        self.patch = nn.Conv2d(channels, width, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width))
        self.dropout = nn.Dropout(p)
        self.blocks = nn.Sequential(*(Block(width, p) for _ in range(4)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the class token."""
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1)
        tokens = self.blocks(self.dropout(tokens + self.position))
        return self.head(self.norm(tokens[:, 0]))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm block; dropout on probabilities, projection, twice in the MLP."""

    def __init__(self, width: int, p: float, heads: int = 16) -> None:
        super().__init__()
        self.heads, self.p = heads, p
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project, self.drop = nn.Linear(width, width), nn.Dropout(p)
        self.mlp = nn.Sequential(
            nn.Linear(width, width),
            nn.GELU(),
            nn.Dropout(p),
            nn.Linear(width, width),
            nn.Dropout(p),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attention and MLP, each added to its input."""
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        p = self.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        x = x + self.drop(self.project(mixed.transpose(1, 2).flatten(2)))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


def resnet18(p: float) -> nn.Module:
    """torchvision's ResNet-18, one dropout before the classifier of 10 classes.

    Takes three channels. Its batch norms are in eval mode, with the statistics that
    they start with: one image has no statistics of a batch.
    """
    from torchvision.models import resnet18 as torchvision_resnet18

    model = torchvision_resnet18(num_classes=10)
    model.fc = nn.Sequential(nn.Dropout(p), model.fc)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model  # type: ignore[no-any-return]


def build(name: str, p: float, *, channels: int, size: int) -> nn.Module:
    """The model called ``name``, for images of these sides."""
    if name == "resnet18":
        return resnet18(p)
    makers: dict[str, Callable[..., nn.Module]]
    makers = {"mlp": mlp, "vit": ViT, "lenet": lenet}
    return makers[name](p, channels=channels, size=size)
