"""Embedding and output layer are one weight: its gradient is the sum of both uses.

G = A Δ + g Hᵀ: the rows of the ids (A of zeros and ones, Δ the gradients δ_t that the
position embedding shows) and what the output layer writes into every row. Beside the
span of Δ only the second part is left, which gives g up to a change of basis; then
every column of G Δ⁺ = A + g C is a plane with one outlier of height 1: the id.
Source: design of this project.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privaudit.attacks._token_forms import UNKNOWN, TokenAttempt, not_one
from privaudit.attacks._token_position import Place, locate, text_embeddings
from privaudit.attacks._token_scene import TokenScene
from privaudit.inventory.embeddings import Embedding

TIED = "position embedding, output layer tied"
_RANK = 1e-5
_AWAY = 0.2
"""How far the height of the outlier may be from 1."""
_FREE = 0.01
"""Least share of a row that the plane must leave open for an outlier to show."""
_NEXT = 0.95
"""How much of a column another row may explain, relative to the best."""
_LEFT = 0.05
"""Share of a column that may be left once its outlier is taken out."""


def tied_embedding(scene: TokenScene) -> TokenAttempt:
    """Tell both uses of a tied weight apart, and so find the ids and their order."""
    refusal = not_one(scene)
    text = [e for e in text_embeddings(scene) if scene.gradient(e.weight) is not None]
    if refusal is None and not text:
        refusal = "no shared embedding takes all positions"
    if refusal is None and scene.known:
        refusal = "the weight of the embedding has no other use"
    if refusal is not None:
        return TokenAttempt(TIED, False, refusal)
    for embedding in text:
        place = locate(scene, embedding)
        if place is not None:
            return _solve(scene, embedding, place)
    reason = "no shared parameter has the gradient of the embedded ids"
    return TokenAttempt(TIED, False, reason)


def _solve(scene: TokenScene, embedding: Embedding, place: Place) -> TokenAttempt:
    both = scene.gradient(embedding.weight)
    delta = place.rows(scene)
    if both is None or delta is None:
        return TokenAttempt(TIED, False, f"{place.name} is not shared")
    live = delta.any(1).nonzero().flatten()
    if not len(live):
        return TokenAttempt(TIED, True, f"no information: {place.name} is zero")
    delta = delta[live]
    inverse, full = _pseudo_inverse(delta)
    along = both @ inverse
    plane = left_basis(both - along @ delta, _RANK * float(both.norm()))
    room = min(delta.shape[1] - len(live), len(both) - 1)
    if not full or plane.shape[1] >= room:
        reason = (
            f"{len(live)} positions and an output layer of rank {plane.shape[1]} do "
            f"not leave room in {delta.shape[1]} dimensions"
        )
        return TokenAttempt(TIED, False, reason)
    rows, left = _outliers(along, plane, embedding.padding)
    sure = (rows >= 0).cpu()
    if not bool(sure.any()):
        reason = f"the two uses of {embedding.weight} could not be told apart"
        return TokenAttempt(TIED, False, reason)
    sequence = torch.full((scene.positions,), UNKNOWN)
    sequence[live.cpu()[sure]] = (rows.cpu() - embedding.offsets[0])[sure]
    reason = (
        f"{int(sure.sum())} of {len(live)} positions from {place.name}; the output "
        f"layer's part of {embedding.weight} was taken out (rank {plane.shape[1]})"
    )
    return TokenAttempt(TIED, True, reason, (), sequence, left, bool(sure.all()))


def left_basis(matrix: Tensor, least: float) -> Tensor:
    """Left singular vectors with a singular value above ``least``, as columns.

    By way of the small square: a vocabulary has many more rows than columns.
    """
    squares, right = torch.linalg.eigh(matrix.T @ matrix)
    kept = squares > max(least, 1e-30) ** 2
    basis: Tensor = matrix @ (right[:, kept] / squares[kept].sqrt())
    return basis


def _pseudo_inverse(delta: Tensor) -> tuple[Tensor, bool]:
    """Δ⁺, (width, positions), and whether all rows of Δ are independent."""
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    full = len(delta) <= delta.shape[1] and bool(s[-1] > _RANK * s[0])
    return vh.T @ torch.diag(1 / s.clamp_min(1e-30)) @ u.T, full


def _outliers(
    columns: Tensor, plane: Tensor, padding: int | None
) -> tuple[Tensor, float]:
    """Per column the row that stands out of a plane, by a height of 1.

    With residual e and leverage h, e²/(1 − h) is largest at a single outlier, and
    there equals the whole squared residual (Cauchy–Schwarz).

    Args:
        columns: (rows, columns).
        plane: (rows, rank), orthonormal.
        padding: The row that is never an id.

    Returns:
        Rows, -1 where none or more than one explains the column; and the largest
        share of a column's residual that its row leaves.
    """
    rest = columns - plane @ (plane.T @ columns)
    free = (1 - plane.square().sum(1))[:, None]
    seen = free > _FREE  # elsewhere the plane could be bent to any outlier
    if padding is not None:
        seen[padding] = False
    free = free.clamp_min(_FREE)
    explained, order = (seen * rest.square() / free).topk(2, dim=0)
    best, rows = explained[0], order[0]
    height = (rest / free).gather(0, rows[None])[0]
    whole = rest.square().sum(0).clamp_min(1e-30)
    left = (1 - best / whole).clamp_min(0).sqrt()
    sure = (height - 1).abs() < _AWAY
    sure &= (left < _LEFT) & (explained[1] < _NEXT * best)
    worst = float(left[sure].max()) if bool(sure.any()) else float("inf")
    return torch.where(sure, rows, -1), worst
