"""Fills in the entries of a low-rank matrix that were kept back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 200
"""Of alternating least squares, at most."""
SETTLED = 1e-9
"""Relative change of the fit at which they end."""
RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class Completed:
    """A matrix with its missing entries filled in, as far as they are determined.

    Attributes:
        values: (rows, columns); rows and columns that nothing determines are zero, so
            that what is left is of low rank.
        known: Share of the entries that are now given.
        misfit: Relative error on the entries that had survived.
    """

    values: Tensor
    known: float
    misfit: float


def complete(matrix: Tensor, rank: int) -> Completed:
    """Alternating least squares over the entries that are not zero.

    Of rank one this starts from the exact solution, followed from entry to entry; of
    higher rank from the singular vectors of what is there.

    Args:
        matrix: (rows, columns) in float64, zero where nothing was sent.
        rank: Of the whole matrix, at most.
    """
    seen = matrix != 0
    rows, columns = _determined(seen, rank)
    if rank == 1:
        rows, columns = _connected(seen & rows[:, None] & columns)
    part, mask = matrix[rows][:, columns], seen[rows][:, columns]
    if part.numel() == 0:
        return Completed(torch.zeros_like(matrix), 0.0, 0.0)
    left, right = _follow(part, mask) if rank == 1 else _leading(part, rank)
    left, right = _alternate(part, mask.to(part), left, right)
    fit = left @ right
    misfit = float(((fit - part) * mask).norm() / part.norm())
    values = torch.zeros_like(matrix)
    values[rows.nonzero(), columns.nonzero().T] = fit
    return Completed(values, fit.numel() / matrix.numel(), misfit)


def _determined(seen: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Rows and columns that keep enough entries among each other."""
    rows = torch.ones(seen.shape[0], dtype=torch.bool, device=seen.device)
    columns = torch.ones(seen.shape[1], dtype=torch.bool, device=seen.device)
    enough = rank if rank == 1 else rank + 1
    while True:
        more_rows = rows & ((seen & columns).sum(1) >= enough)
        more_columns = columns & ((seen & more_rows[:, None]).sum(0) >= enough)
        if more_rows.equal(rows) and more_columns.equal(columns):
            return rows, columns
        rows, columns = more_rows, more_columns


def _connected(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns that hang together with the fullest row."""
    edges = seen.double()
    rows = torch.zeros(seen.shape[0], dtype=torch.bool, device=seen.device)
    if bool(seen.any()):
        rows[seen.sum(1).argmax()] = True
    while True:
        columns = (rows.double() @ edges) > 0
        reached = rows | ((edges @ columns.double()) > 0)
        if reached.equal(rows):
            return rows, columns
        rows = reached


def _follow(part: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """δ and x of ``δ xᵀ``, from the fullest row to all that it is connected with."""
    edges = mask.to(part)
    left, right = part.new_zeros(part.shape[0]), part.new_zeros(part.shape[1])
    left[edges.sum(1).argmax()] = 1.0
    for _ in range(sum(part.shape)):
        right = torch.where(right != 0, right, _ratio(left @ part, left**2 @ edges))
        before = int((left != 0).sum())
        left = torch.where(left != 0, left, _ratio(part @ right, edges @ right**2))
        if int((left != 0).sum()) == before:
            break
    return left[:, None], right[None]


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below.clamp_min(1e-300), 0.0)


def _leading(part: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    u, s, vh = torch.linalg.svd(part, full_matrices=False)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vh[:rank]


def _alternate(
    part: Tensor, mask: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Least squares for one side at a time, over the entries in ``mask``."""
    before = float("inf")
    for _ in range(ROUNDS):
        left = _solve(part, mask, right)
        right = _solve(part.T, mask.T, left.T).T
        now = float((((left @ right) - part) * mask).norm() / part.norm())
        if now < SETTLED or before - now < SETTLED * before:
            break
        before = now
    return left, right


def _solve(part: Tensor, mask: Tensor, right: Tensor) -> Tensor:
    """The left factor, (rows, rank): each row's own least squares."""
    rank = len(right)
    pairs = (right[:, None] * right[None]).reshape(rank * rank, -1)
    normal = (mask @ pairs.T).view(-1, rank, rank)
    size = normal.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-300)
    ridge = torch.eye(rank, dtype=part.dtype, device=part.device)
    normal = normal + RIDGE * size[:, None, None] * ridge
    wanted = (part * mask) @ right.T
    solved: Tensor = torch.linalg.solve(normal, wanted[:, :, None])
    return solved[:, :, 0]
