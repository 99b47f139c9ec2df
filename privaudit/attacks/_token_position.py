"""A learned position embedding tells which of the leaked ids stands where.

Embedding and position embedding are added, so both have the same gradient δ_t at
position t: ∂L/∂P_t = δ_t, and the row of id v is R_v = Σ_{t: id_t = v} δ_t. So R = A Δ
with A (ids × positions) of zeros and ones: one 1 per position, at its id. Dropout and
norms behind the sum act on both sides alike.
Source: design of this project, after Lu 2021 (APRIL) for images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit._autograd import partials
from privaudit.attacks._token_forms import UNKNOWN, TokenAttempt, not_one
from privaudit.attacks._token_scene import TokenScene
from privaudit.exposure import shared_parameters
from privaudit.inventory.embeddings import Embedding

POSITIONS = "position embedding"
_SAME = 1e-4
_RANK = 1e-5
_AWAY = 0.2
"""How far an entry of A may be from 0 or 1."""


@dataclass(frozen=True)
class Place:
    """Where δ stands: parameter, first row, and what it is multiplied by."""

    name: str
    start: int
    factor: float

    def rows(self, scene: TokenScene) -> Tensor | None:
        """δ at each position, (positions, width); None when it is not shared."""
        table = scene.gradient(self.name)
        if table is None:
            return None
        rows = table.reshape(-1, table.shape[-1])[self.start :][: scene.positions]
        return rows / self.factor


def position_embedding(scene: TokenScene) -> TokenAttempt:
    """Solve ``A Δ = R`` for A by least squares in float64."""
    refusal = not_one(scene)
    text = text_embeddings(scene)
    if refusal is None and not text:
        refusal = "no embedding takes all positions"
    if refusal is None and not scene.known:
        refusal = "the rows of the embedding's gradient are not known"
    if refusal is not None:
        return TokenAttempt(POSITIONS, False, refusal)
    for embedding in text:
        place = locate(scene, embedding)
        if place is not None:
            return _solve(scene, embedding, place)
    reason = "no shared parameter has the gradient of the embedded ids"
    return TokenAttempt(POSITIONS, False, reason)


def text_embeddings(scene: TokenScene) -> list[Embedding]:
    """Embeddings that look up all positions in one table, as text models do."""
    return [
        e for e in scene.embeddings if e.whole and len(set(e.offsets.values())) == 1
    ]


def _solve(scene: TokenScene, embedding: Embedding, place: Place) -> TokenAttempt:
    delta, rows = place.rows(scene), scene.gradient(embedding.weight)
    if delta is None or rows is None:
        return TokenAttempt(POSITIONS, False, f"{place.name} is not shared")
    live = delta.any(1).nonzero().flatten()
    ids = torch.tensor(scene.known[0], device=delta.device)
    seen = rows[ids + embedding.offsets[0]]
    if not len(live):
        return TokenAttempt(POSITIONS, True, f"no information: {place.name} is zero")
    singular = torch.linalg.svdvals(delta[live])
    rank = int((singular > _RANK * singular[0]).sum())
    if rank < len(live):
        return _alone(scene, delta, seen, ids=ids, rank=rank, name=place.name)
    where = torch.linalg.lstsq(delta[live].T, seen.T).solution.T
    rest = float((where.round() @ delta[live] - seen).norm() / seen.norm())
    ones = (where.round() == 1).sum(0)
    # Padding is added to its position like any id, and has no row in the gradient.
    blank = (ones == 0) & (embedding.padding is not None)
    fits = bool(((ones == 1) | blank).all())
    if bool((where - where.round()).abs().max() > _AWAY) or not fits:
        reason = f"{place.name} and {embedding.weight} do not add up ({rest:.1e})"
        return TokenAttempt(POSITIONS, False, reason, residual=rest)
    sequence = torch.full((scene.positions,), UNKNOWN)
    found = ids[where.round().argmax(0)]
    if embedding.padding is not None:
        found[blank] = embedding.padding - embedding.offsets[0]
    sequence[live.cpu()] = found.cpu()
    reason = f"{len(live)} positions from the gradients of {place.name} and "
    reason += f"{embedding.weight}"
    return TokenAttempt(POSITIONS, True, reason, (), sequence, rest, whole=True)


def _alone(
    scene: TokenScene,
    delta: Tensor,
    seen: Tensor,
    *,
    ids: Tensor,
    rank: int,
    name: str,
) -> TokenAttempt:
    """More positions than equations: ids that stand once have their δ as their row."""
    reason = (
        f"{int(delta.any(1).sum())} positions, but the gradients of {name} span {rank} "
        f"of {delta.shape[1]} dimensions"
    )
    apart = torch.cdist(seen, delta) / seen.norm(dim=1, keepdim=True)
    sequence = torch.full((scene.positions,), UNKNOWN)
    for row, distances in enumerate(apart):
        close = (distances < _SAME).nonzero().flatten()
        if len(close) == 1:
            sequence[int(close[0])] = int(ids[row])
    count = int((sequence != UNKNOWN).sum())
    if not count:
        return TokenAttempt(POSITIONS, False, reason)
    reason += f"; {count} ids that stand once were placed"
    return TokenAttempt(POSITIONS, True, reason, (), sequence)


def locate(scene: TokenScene, embedding: Embedding) -> Place | None:
    """Find the parameter whose gradient is that of the embedded ids, by trying it."""
    lookup = next(
        (
            x for x in scene.own.lookups
            if x.path == embedding.path and x.rows.numel() == scene.own.ids.numel()
        ),
        None,
    )  # fmt: skip
    if lookup is None or lookup.output.dim() < 2 or not lookup.output.requires_grad:
        return None
    width = lookup.output.shape[-1]
    if lookup.output.numel() != scene.positions * width:
        return None  # a bag: one row for all positions
    parameters = shared_parameters(scene.target.model)
    names = [
        n for n in scene.observation.gradients
        if n != embedding.weight and n in parameters
        and parameters[n].shape[-1] == width
        and parameters[n].numel() >= scene.positions * width
    ]  # fmt: skip
    wanted = [lookup.output, *(parameters[n] for n in names)]
    out, *found = partials(scene.own.loss, wanted)
    if out is None or not out.any():
        return None
    delta = out.reshape(scene.positions, width).double()
    for name, gradient in zip(names, found, strict=True):
        place = None if gradient is None else _matches(name, gradient, delta)
        if place is not None:
            return place
    return None


def _matches(name: str, gradient: Tensor, delta: Tensor) -> Place | None:
    """Whether consecutive rows of ``gradient`` are a multiple of ``delta``."""
    table = gradient.double()
    table = table.reshape(-1, table.shape[-1])
    filled = table.any(1).nonzero().flatten()
    first = delta.any(1).nonzero().flatten()
    if not len(filled) or not len(first):
        return None
    start = int(filled[0] - first[0])
    if start < 0 or start + len(delta) > len(table):
        return None
    rows = table[start : start + len(delta)]
    factor = float((rows * delta).sum() / delta.square().sum())
    apart = (rows - factor * delta).norm()
    if factor == 0 or apart > _SAME * rows.norm():
        return None
    return Place(name, start, factor)
