"""Scale and sign of each sample of a batch, from what the next layer was given.

The next layer's gradient has the row space of its inputs, the activations h. A
sample's h is zero where its mask is, which singles it out in that space. So the scale
is right where the activations of the scaled input are parallel to h.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._scale import interval
from privaudit.attacks._scene import Scene
from privaudit.attacks._unfold import inputs_of, still
from privaudit.tape import Op

_GRID = 40
_SHRINK = 0.86
_ZOOM = 9
_ZOOMS = 9
_HOMOGENEOUS = 1e-5
_MIDDLE = 0.6


@dataclass(frozen=True, eq=False)
class Scaled:
    """The images of a batch along known directions.

    Attributes:
        images: (batch, channels, height, width), not clamped.
        settled: (batch,) False where every scale of one sign fits as well (ReLU).
    """

    images: Tensor
    settled: Tensor


def scale_rows(scene: Scene, rows: Tensor, hidden: Tensor, *, after: Op) -> Scaled:
    """Search scale and sign of every row, all at once.

    Args:
        scene: The observation.
        rows: (batch, in): inputs of the first layer up to scale and sign.
        hidden: (batch, units): directions of the inputs of ``after``.
        after: The layer behind the first one.
    """
    origin, slope = _lines(scene, rows)
    ends = [interval(origin[i], slope[i]) for i in range(len(rows))]
    low = torch.tensor([e[0] for e in ends], dtype=torch.double)
    high = torch.tensor([e[1] for e in ends], dtype=torch.double)
    values = still(scene.structure.tape)
    kept = hidden != 0

    def apart(scale: Tensor) -> Tensor:
        images = origin + scale.view(-1, 1, 1, 1) * slope
        h = inputs_of(scene, images, values, after).to(hidden) * kept
        h = h / h.norm(dim=1, keepdim=True).clamp_min(1e-30)
        # The sign of h is unknown too; a difference keeps digits that 1 - cos loses.
        plus, minus = (h - hidden).norm(dim=1), (h + hidden).norm(dim=1)
        return torch.minimum(plus, minus)

    steps = _SHRINK ** torch.arange(_GRID, dtype=torch.double)
    grid = torch.stack([*(low * s for s in steps), *(high * s for s in steps.flip(0))])
    errors = torch.stack([apart(s) for s in grid])
    flat = errors.amin(0) + _HOMOGENEOUS
    settled = (errors <= flat).sum(0) <= _GRID // 4
    best = errors.argmin(0)
    left = grid[(best - 1).clamp_min(0), range(len(rows))]
    right = grid[(best + 1).clamp_max(len(grid) - 1), range(len(rows))]
    for _ in range(_ZOOMS):
        share = torch.linspace(0, 1, _ZOOM, dtype=torch.double)
        points = torch.stack([left + t * (right - left) for t in share])
        best = torch.stack([apart(s) for s in points]).argmin(0)
        left = points[(best - 1).clamp_min(0), range(len(rows))]
        right = points[(best + 1).clamp_max(_ZOOM - 1), range(len(rows))]
    positive = errors[_GRID:].amin(0) <= errors[:_GRID].amin(0)
    middle = _MIDDLE * torch.where(positive, high, low)
    scale = torch.where(settled, (left + right) / 2, middle)
    return Scaled(origin + scale.view(-1, 1, 1, 1) * slope, settled)


def images_of(scene: Scene, rows: Tensor) -> Tensor:
    """The images whose first-layer inputs are ``rows`` (batch, in)."""
    first, inputs = scene.structure.first, scene.structure.inputs
    shape = (1, *first.input.shape[1:])
    found = [inputs.invert(row.view(shape)).cpu() for row in rows]
    return torch.cat(found).double()


def _lines(scene: Scene, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Images ``origin + s · slope`` whose first-layer inputs are ``s · rows``."""
    zero = images_of(scene, torch.zeros_like(rows[:1]))
    slope = images_of(scene, rows) - zero
    # Once more with a step of visible size: a difference of near equals is rounding.
    length = 0.25 / slope.abs().amax((1, 2, 3)).clamp_min(1e-12)
    slope = (images_of(scene, length[:, None] * rows) - zero) / length.view(-1, 1, 1, 1)
    return zero.expand_as(slope), slope
