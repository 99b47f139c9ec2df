"""A small CNN for digits, with trained weights beside it.

``examples/train_digits_client.py`` trains it; the weights are stored in half precision.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

MEAN, STD = (0.1307,), (0.3081,)
SIDE = 28
FILE = Path(__file__).with_name("split_digits.safetensors")


class DigitsCNN(nn.Module):
    """28×28 grey → 32×4×4 at ``pool``, 64×2×2 at ``deep``, 64 at ``hidden``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.deep = nn.Sequential(
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)
        )
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(self.deep(self.pool(self.conv(x))))
        return self.head(hidden)  # type: ignore[no-any-return]


def digits_client() -> DigitsCNN:
    """With its trained weights, float32, in eval mode."""
    from safetensors.torch import load_file

    with torch.random.fork_rng():
        model = DigitsCNN()
    model.load_state_dict({k: v.float() for k, v in load_file(FILE).items()})
    return model.eval()
