"""What the first linear layer is given for each id at each position: by trying."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._token_scene import AT_ONCE, TokenScene

_MOVED = 1e-6
"""Relative change below which a value counts as unmoved."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which values of a linear layer's input belong to which position.

    Attributes:
        call: Which linear call.
        positions: How many there are.
        owner: (values,) the position that a value depends on, or -1, where one row
            holds all positions; None where each position has a row of its own.
    """

    call: int
    positions: int
    owner: Tensor | None

    def split(self, inputs: Tensor) -> list[Tensor]:
        """Per position its values, each (sequences, values).

        Args:
            inputs: (sequences, rows, values).
        """
        if self.owner is None:
            return list(inputs.unbind(1))
        row = inputs[:, 0]
        return [row[:, self.owner == t] for t in range(self.positions)]


@dataclass(frozen=True, eq=False)
class Tried:
    """Some candidates of every position, and what the layer is given for them.

    Attributes:
        ids: (candidates, positions).
        real: Likewise; False where a position has fewer candidates and repeats one.
        values: Per position (candidates, values).
    """

    ids: Tensor
    real: Tensor
    values: list[Tensor]


def blocks_of(scene: TokenScene) -> Blocks | str:
    """The layout of the first linear layer whose input depends on the ids.

    Returns:
        The layout, or the condition that does not hold.
    """
    key = Blocks.__name__
    known = scene.target.memory.get(key)
    if isinstance(known, Blocks | str):
        return known
    found: Blocks | str = "no linear layer takes what depends on the ids"
    for call, op in enumerate(scene.own.linear):
        moved = _moved(scene, call)
        if moved is not None:
            layout = _layout(call, *moved)
            found = layout or f"the input of {op.path} mixes positions"
            break
    scene.target.memory[key] = found
    return found


def _moved(scene: TokenScene, call: int) -> tuple[Tensor, Tensor] | None:
    """What moves when one id changes; None where nothing does.

    Returns:
        (positions, rows) and, of the first row, (positions, values).
    """
    base = scene.own.ids[:1]
    before = scene.inputs_of(call, base)
    least = _MOVED * float(before.abs().max())
    rows, values = [], []
    changed, at_once = _changed(scene, base), max(1, AT_ONCE // scene.positions)
    for start in range(0, len(changed), at_once):
        part = changed[start : start + at_once]
        moved = (scene.inputs_of(call, part) - before).abs() > least
        rows.append(moved.any(2))
        values.append(moved[:, 0])
    by_row = torch.cat(rows)
    return (by_row, torch.cat(values)) if bool(by_row.any()) else None


def _changed(scene: TokenScene, base: Tensor) -> Tensor:
    """As many sequences as positions, each with another id at its own position."""
    changed = base.repeat(scene.positions, 1)
    for position in range(scene.positions):
        size = max(len(scene.vocabulary(position)), 1)
        changed[position, position] = (int(base[0, position]) + 1) % size
    return changed


def _layout(call: int, by_row: Tensor, by_value: Tensor) -> Blocks | None:
    positions, rows = by_row.shape
    if rows == positions > 1:
        own = torch.eye(positions, dtype=torch.bool, device=by_row.device)
        return None if bool((by_row & ~own).any()) else Blocks(call, positions, None)
    if rows != 1 or bool((by_value.sum(0) > 1).any()):
        return None
    nobody = torch.full_like(by_value[0], -1, dtype=torch.long)
    owner = torch.where(by_value.any(0), by_value.int().argmax(0), nobody)
    return Blocks(call, positions, owner)


class OutOfTimeError(Exception):
    """Time is up before all candidates were tried."""


def try_candidates(scene: TokenScene, blocks: Blocks) -> Iterator[Tried]:
    """Every candidate of every position, many at a time.

    Raises:
        OutOfTimeError: At the deadline.
    """
    listed = [scene.candidates(t) for t in range(scene.positions)]
    most = max(len(ids) for ids in listed)
    step = max(1, AT_ONCE // scene.positions)
    for start in range(0, most, step):
        if time.monotonic() > scene.deadline:
            raise OutOfTimeError(f"time was up after {start} of {most} ids a position")
        rows = range(start, min(start + step, most))
        ids = torch.tensor([[c[min(k, len(c) - 1)] for c in listed] for k in rows])
        real = torch.tensor([[k < len(c) for c in listed] for k in rows])
        ids, real = ids.to(scene.device), real.to(scene.device)
        yield Tried(ids, real, blocks.split(scene.inputs_of(blocks.call, ids)))


@dataclass(eq=False)
class Best:
    """The best candidate of every position, and how well the next best fits."""

    ids: Tensor
    error: Tensor
    second: Tensor

    @classmethod
    def none(cls, positions: int, device: torch.device) -> Best:
        """Nothing tried yet."""
        far = torch.full((positions,), float("inf"), dtype=torch.double, device=device)
        ids = torch.full((positions,), -1, device=device)
        return cls(ids, far, far.clone())

    def add(self, tried: Tried, errors: Tensor) -> None:
        """Take up more candidates.

        Args:
            tried: The candidates.
            errors: (candidates, positions), relative.
        """
        errors = errors.masked_fill(~tried.real, float("inf"))
        every = torch.cat([self.error[None], self.second[None], errors])
        ids = torch.cat([self.ids[None], self.ids[None], tried.ids])
        order = every.argsort(dim=0, stable=True)
        self.ids = ids.gather(0, order[:1])[0]
        ranked = every.gather(0, order)
        self.error, self.second = ranked[0], ranked[1]
