"""The first linear layer gives its input away, and each id has an input of its own.

One row for the whole sequence (ids embedded, then flattened): its gradient is δ xᵀ, so
x stands in it (Phong 2017), and each position's values in x are those of one id. One
row per position (a transformer): ∂L/∂W = Σ_t δ_t n_tᵀ, so each n_t lies in the row
space of the gradient, and few other ids do.
Source: Petrov 2024 (DAGER) for the row space; the layout is found by trying.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._token_forms import CLEAR, FITS, UNKNOWN, TokenAttempt, not_one
from privaudit.attacks._token_scene import TokenScene
from privaudit.attacks._token_table import (
    Best,
    Blocks,
    Tried,
    blocks_of,
    try_candidates,
)
from privaudit.tape import same_data
from privaudit.types import LeakedIds

FLAT = "first linear layer on embedded ids"
SPACE = "row space of the first projection"
_RANK = 3e-6
"""Singular values below this share of the first are rounding."""
_LEAST = 1e-3
"""Share of the usual norm below which a position's values are zeros."""
_DROPPED = 1e-6
"""Share of the usual norm below which a value was dropped."""
_ONE = 1e-4
"""Share of a gradient that may be left beside its one row."""


def flattened(scene: TokenScene) -> TokenAttempt:
    """Divide the weight's gradient by the bias's; compare position by position.

    Without a bias the gradient gives x up to a factor, and directions are compared.
    """
    blocks = _blocks(scene, FLAT)
    if isinstance(blocks, TokenAttempt):
        return blocks
    path = scene.own.linear[blocks.call].path
    if blocks.owner is None:
        return TokenAttempt(FLAT, False, f"{path} sees one row per position")
    scale = _dropout_scale(scene, blocks)
    if isinstance(scale, str):
        return TokenAttempt(FLAT, False, scale)
    found = _row(scene, blocks)
    if isinstance(found, str):
        return TokenAttempt(FLAT, False, found)
    given = _Given(
        blocks.split(found.row[None, None] / scale),
        float(found.row.norm()) / scene.positions**0.5,
        dropped=scale != 1.0,
        scaled=found.scaled,
    )
    best = Best.none(scene.positions, scene.device)
    for tried in try_candidates(scene, blocks):
        errors = [given.apart(t, values) for t, values in enumerate(tried.values)]
        best.add(tried, torch.stack(errors, 1))
    return _answer(FLAT, scene, best, f"{path}: {found.how}")


def row_space(scene: TokenScene) -> TokenAttempt:
    """Which ids, at which positions, lie in the row space of the gradient."""
    blocks = _blocks(scene, SPACE)
    if isinstance(blocks, TokenAttempt):
        return blocks
    first = scene.own.linear[blocks.call]
    if blocks.owner is not None:
        return TokenAttempt(SPACE, False, f"{first.path} sees one row for everything")
    if scene.draws_before(blocks.call):
        reason = f"dropout acts on the input of {first.path}"
        return TokenAttempt(SPACE, False, reason)
    gradient = _projections(scene, blocks)
    if gradient is None or not gradient.any():
        reason = f"the weight of {first.path} is not shared, or its gradient is zero"
        return TokenAttempt(SPACE, False, reason)
    _, s, vh = torch.linalg.svd(gradient, full_matrices=False)
    rank = min(int((s > _RANK * s[0]).sum()), scene.positions)
    if rank >= gradient.shape[1]:
        reason = f"{scene.positions} positions fill all {rank} dimensions"
        return TokenAttempt(SPACE, False, reason)
    inside, best = vh[:rank], Best.none(scene.positions, scene.device)
    placed, fitting = scene.positions == 1, set[int]()
    for tried in try_candidates(scene, blocks):
        values = torch.stack(tried.values, 1)
        rest = values - values @ inside.T @ inside
        length = values.norm(dim=2)
        errors = rest.norm(dim=2) / length.clamp_min(1e-30)
        # Zeros, as padding is embedded, lie in every space.
        errors = errors.masked_fill(length < _LEAST * length.max(), float("inf"))
        best.add(tried, errors)
        fitting |= set(tried.ids[(errors < FITS) & tried.real].tolist())
        placed = placed or _placed(tried)
    if not placed:
        return _set_only(scene, first.path, sorted(fitting))
    return _answer(SPACE, scene, best, f"{first.path}: rank {rank}")


def _placed(tried: Tried) -> bool:
    """Whether one id gives other values at other positions."""
    same_id = tried.ids == tried.ids[:, :1]
    values = torch.stack(tried.values, 1)
    apart = (values - values[:, :1]).abs().amax(2)
    return bool((apart[same_id & tried.real] > 0).any()) or not bool(same_id.all())


def _set_only(scene: TokenScene, path: str, ids: list[int]) -> TokenAttempt:
    """Where positions look alike, the row space shows ids without an order."""
    reason = f"the input of {path} is the same at every position: no order"
    if not 0 < len(ids) <= scene.positions:
        return TokenAttempt(SPACE, False, reason)
    everywhere = tuple(range(scene.positions))
    leaks = [LeakedIds(path, everywhere, tuple(ids))]
    return TokenAttempt(SPACE, True, f"{reason}; {len(ids)} ids fit", leaks)


def _blocks(scene: TokenScene, form: str) -> Blocks | TokenAttempt:
    refusal = not_one(scene)
    if refusal is not None:
        return TokenAttempt(form, False, refusal)
    found = blocks_of(scene)
    return TokenAttempt(form, False, found) if isinstance(found, str) else found


def _dropout_scale(scene: TokenScene, blocks: Blocks) -> float | str:
    """What dropout multiplies the values by that it lets through."""
    rates = scene.draws_before(blocks.call)
    if len(rates) > 1 or any(not 0 <= p < 1 for p in rates):
        path = scene.own.linear[blocks.call].path
        return f"several random draws act on the input of {path}"
    return 1 / (1 - rates[0]) if rates else 1.0


@dataclass(frozen=True, eq=False)
class _Row:
    """The input of the layer, and whether its length and sign are known."""

    row: Tensor
    scaled: bool
    how: str


@dataclass(frozen=True, eq=False)
class _Given:
    """What the gradient shows of every position, to hold candidates against.

    Attributes:
        values: Per position (1, values).
        typical: Norm of one position's values; much smaller ones are zeros (padding).
        dropped: True where exact zeros are dropout's, and say nothing.
        scaled: False where the values are known up to a factor only.
    """

    values: list[Tensor]
    typical: float
    dropped: bool
    scaled: bool

    def apart(self, position: int, values: Tensor) -> Tensor:
        """Relative distance of each candidate, (candidates,)."""
        given = self.values[position][0]
        if self.dropped:
            kept = given.abs() > _DROPPED * self.typical
            values, given = values[:, kept], given[kept]
        if not given.numel():
            return values.new_full((len(values),), float("inf"))
        least = _LEAST * self.typical
        if self.scaled:
            apart: Tensor = (values - given).norm(dim=1) / given.norm().clamp_min(least)
            return apart
        along = given / given.norm().clamp_min(1e-30)
        beside = values - torch.outer(values @ along, along)
        turned: Tensor = beside.norm(dim=1) / values.norm(dim=1).clamp_min(1e-30)
        return turned


def _row(scene: TokenScene, blocks: Blocks) -> _Row | str:
    """The input of the layer, or the condition that does not hold."""
    op = scene.own.linear[blocks.call]
    weight, bias = scene.gradient(op.weight), scene.gradient(op.bias)
    if weight is None:
        return f"the weight of {op.path} is not shared"
    if sum(other.weight == op.weight for other in scene.own.linear) != 1:
        return f"the weight of {op.path} is used more than once"
    weight = weight.T if op.settings.get("turned") else weight
    if not weight.any():
        return f"no information: the gradient of {op.path} is zero"
    _, s, vh = torch.linalg.svd(weight, full_matrices=False)
    rest = float(s[1:].norm() / s[0])
    if rest > _ONE:
        return f"the gradient of {op.path} is not of rank 1 ({rest:.1e})"
    if bias is None or not bias.any():
        return _Row(vh[0], False, "the one direction of its gradient")
    row = bias @ weight / bias.square().sum()
    return _Row(row, True, "weight gradient divided by bias gradient")


def _projections(scene: TokenScene, blocks: Blocks) -> Tensor | None:
    """The gradients of all linear layers on the same input, one below the other."""
    first = scene.own.linear[blocks.call]
    found = []
    for op in scene.own.linear:
        gradient = scene.gradient(op.weight)
        if gradient is not None and same_data(op.input, first.input):
            found.append(gradient.T if op.settings.get("turned") else gradient)
    return torch.cat(found) if found else None


def _answer(form: str, scene: TokenScene, best: Best, reason: str) -> TokenAttempt:
    """Take the candidates that fit while no other does."""
    fits = (best.error < FITS) & (best.second > CLEAR * best.error)
    sequence = best.ids.masked_fill(~fits, UNKNOWN).cpu()
    count = int(fits.sum())
    if not count:
        closest = float(best.error.min())
        return TokenAttempt(form, False, f"{reason}; no id fits (best {closest:.1e})")
    whole = count == scene.positions
    worst = float(best.error[fits].max())
    reason += f"; {count} of {scene.positions} positions"
    return TokenAttempt(form, True, reason, (), sequence, worst, whole)
