"""A small trained client for digits, and digits drawn for it, for the split demo.

The client learnt from 8,000 digits of MNIST (``examples/train_digits_client.py``); the
digits here are none of these: strokes written down for this package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from PIL.Image import Image

MEAN, STD = (0.1307,), (0.3081,)
SIDE = 28
FILE = Path(__file__).with_name("digits_client.safetensors")
_FINE = 8
"""Strokes are drawn that many times larger."""
_STROKES: dict[str, list[list[tuple[float, float]]]] = {
    "7": [[(8, 8), (19, 7.5), (16, 14), (13, 21)]],
    "2": [[(9, 10), (11, 7.5), (15, 7), (18, 9), (17, 13), (13, 17), (9, 20.5),
           (13, 20), (19, 20.5)]],
    "4": [[(10, 7), (9, 14), (14, 14.5), (19, 13.5)],
          [(17.5, 7), (16.5, 14), (16, 21)]],
    "0": [[(14, 7), (10, 10), (9, 15), (11, 20), (15, 21), (18.5, 17), (18.5, 11),
           (16, 7.5), (13.5, 7)]],
}  # fmt: skip
"""Of each digit: polylines of (x, y) in pixels, smoothed when drawn."""


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
        """(batch, 1, 28, 28), normalised → (batch, 10)."""
        hidden = self.hidden(self.deep(self.pool(self.conv(x))))
        return self.head(hidden)  # type: ignore[no-any-return]


def digits_client() -> DigitsCNN:
    """With its trained weights, float32, in eval mode."""
    from safetensors.torch import load_file

    with torch.random.fork_rng():
        model = DigitsCNN()
    model.load_state_dict({k: v.float() for k, v in load_file(FILE).items()})
    return model.eval()


def drawn_digits() -> list[Image]:
    """A seven, a two, a four and a nought, grey, 28×28."""
    return [_drawn(strokes) for strokes in _STROKES.values()]


def _drawn(strokes: list[list[tuple[float, float]]]) -> Image:
    from PIL import Image, ImageDraw

    large = Image.new("L", (SIDE * _FINE, SIDE * _FINE))
    pen, radius = ImageDraw.Draw(large), 1.15 * _FINE
    for stroke in strokes:
        for x, y in _smoothed(stroke):
            x, y = x * _FINE, y * _FINE
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return large.resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def _smoothed(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points close together on a curve through the given ones (Catmull 1974)."""
    ends = [points[0], *points, points[-1]]
    found = []
    for a, b, c, d in zip(ends, ends[1:], ends[2:], ends[3:], strict=False):
        for step in range(40):
            t = step / 40
            weights = (
                (-t + 2 * t**2 - t**3) / 2, (2 - 5 * t**2 + 3 * t**3) / 2,
                (t + 4 * t**2 - 3 * t**3) / 2, (-(t**2) + t**3) / 2,
            )  # fmt: skip
            near = (a, b, c, d)
            x, y = (
                sum(w * p[axis] for w, p in zip(weights, near, strict=True))
                for axis in (0, 1)
            )
            found.append((x, y))
    return [*found, points[-1]]
