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
    structure = scene.structure
    sites = {site.draw: site for site in structure.sites}
    values: list[Tensor | None] = []
    for index, draw in enumerate(structure.tape):
        if not draw.active or draw.p == 1.0:
            values.append(None)
            continue
        site = sites.get(index)
        if site is None or draw.hidden:
            return Masks(None, f"{draw.kind} of {draw.name} cannot be read off")
        mask = _read(scene, site)
        if mask is None:
            where = f"{draw.name} is not between two linear layers on one row"
            return Masks(None, where)
        values.append(mask)
    return Masks(structure.tape.with_values(values), "read off the gradient")


def _read(scene: Scene, site: DropSite) -> Tensor | None:
    """The mask of one site: 1 keeps, 0 drops; None where it does not show."""
    after = _consumer(scene, site)
    if after is None:
        return None
    gradient = scene.gradient(after.weight)
    if gradient is None or not gradient.any():
        return None
    kept = gradient.any(0)
    before = _producer(scene, site)
    if before is not None:
        rows = scene.gradient(before.weight)
        if rows is not None:
            kept = kept | rows.any(1)
    return kept.view(site.output.shape).to(site.output.dtype)


def _consumer(scene: Scene, site: DropSite) -> Op | None:
    """The linear layer that takes the site's output as its one row."""
    for op in scene.structure.ops:
        one_row = op.input.numel() == op.input.shape[-1]
        if op.kind == "linear" and one_row and same_data(op.input, site.output):
            return op
    return None


def _producer(scene: Scene, site: DropSite) -> Op | None:
    """The linear layer whose output, through an activation, is the site's input."""
    for op in reversed(scene.structure.ops):
        linear = op.kind == "linear" and op.output.shape == site.input.shape
        if linear and op.output.requires_grad and _elementwise(op.output, site.input):
            return op
    return None


def _elementwise(source: Tensor, result: Tensor) -> bool:
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
