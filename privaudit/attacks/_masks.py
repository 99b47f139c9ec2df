"""Dropout masks stand in the gradient: what was dropped has no gradient.

Source: Scheliga 2023, eq. 7, and its mirror. Batch of one, one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit._autograd import partials
from privaudit.attacks._scene import Scene
from privaudit.tape import DropSite, Op, Tape, same_data


@dataclass(frozen=True, eq=False)
class Masks:
    """The client's tape as read off the gradient, or why it cannot be."""

    tape: Tape | None
    reason: str


def read_masks(scene: Scene) -> Masks:
    """Read every dropout mask of the step.

    A dropped unit has a zero column in the next linear layer's gradient *and* a zero
    row in the previous one's. Both are needed: GELU is exactly 0 below -5.5 in
    float32, so a zero column alone is no proof. Where a unit is zero of its own
    accord its mask makes no difference.
    """
    values: list[Tensor | None] = []
    for index, draw in enumerate(scene.structure.tape):
        if not draw.active or draw.p == 1.0:
            values.append(None)
            continue
        reading = read_mask(scene, index)
        if reading is None:
            where = f"{draw.name} is not between two linear layers on one row"
            return Masks(None, f"the mask of {where}")
        values.append(reading.value)
    return Masks(scene.structure.tape.with_values(values), "read off the gradient")


@dataclass(frozen=True, eq=False)
class Reading:
    """One mask as far as the gradient shows it.

    Attributes:
        value: 1 keeps, 0 drops, of the mask's shape.
        certain: False where a zero may be the unit's own and not the mask's.
    """

    value: Tensor
    certain: Tensor


def read_mask(scene: Scene, index: int) -> Reading | None:
    """The mask of one draw; None where it does not show. Batch of one, one row."""
    site = next((s for s in scene.structure.sites if s.draw == index), None)
    if site is None or scene.observation.batch_size != 1:
        return None
    if scene.structure.tape.draws[index].hidden:
        return None
    after = _consumer(scene, site)
    gradient = None if after is None else scene.gradient(after.weight)
    if gradient is None or not gradient.any():
        return None
    kept = gradient.any(0)
    before = producer(scene, site)
    rows = None if before is None else scene.gradient(before.weight)
    if rows is not None:
        kept = kept | rows.any(1)
    # Units that are exactly zero for an image of the attacker's own may be zero here.
    silent = rows is None and bool((site.input == 0).any())
    certain = kept if silent else torch.ones_like(kept)
    shape = site.output.shape
    return Reading(kept.view(shape).to(site.output.dtype), certain.view(shape))


def _consumer(scene: Scene, site: DropSite) -> Op | None:
    """The linear layer that takes the site's output as its one row."""
    for op in scene.structure.ops:
        one_row = op.input.dim() > 0 and op.input.numel() == op.input.shape[-1]
        if op.kind == "linear" and one_row and same_data(op.input, site.output):
            return op
    return None


def producer(scene: Scene, site: DropSite) -> Op | None:
    """The linear layer whose output, through an activation, is the site's input."""
    for op in reversed(scene.structure.ops):
        linear = op.kind == "linear" and op.output.shape == site.input.shape
        if linear and op.output.requires_grad and elementwise(op.output, site.input):
            return op
    return None


def elementwise(source: Tensor, result: Tensor) -> bool:
    """True when each entry of ``result`` depends on its own of ``source`` only."""
    if not result.requires_grad:
        return False
    probe = torch.zeros_like(result).flatten()
    probe[:: max(1, probe.numel() // 7)] = 1.0
    (back,) = partials(result, [source], probe.view_as(result))
    if back is None:
        return False
    outside = back.flatten()[probe == 0]
    return bool(back.any()) and not bool(outside.any())
