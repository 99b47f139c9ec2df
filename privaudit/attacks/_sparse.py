"""Sparse vectors in a subspace: what makes a low-rank product of a batch unique.

The gradient of a linear layer is ``Δ Xᵀ``. Dropout and ReLU put exact zeros into the
columns of Δ, one column a sample. Each column is a sparse vector in the column space
of the gradient, and for a random model nothing else in that space is as sparse.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

_STEPS = 40
_LAST = 1e-4
_TIGHTER = (1e-2, 3e-3, 1e-3, 1e-4, 1e-5)
"""Entries of a row of unit norm below it count as zero, while a direction is refined:
the last is far above the rounding of float32 gradients."""
_PARALLEL = 1e-4
_INDEPENDENT = 1e-4
_SETTINGS = (
    (1.2, 1.0, False),
    (0.8, 1.0, False),
    (1.2, 0.8, False),
    (0.4, 1.0, True),
    (0.4, 1.0, False),
)
"""Per round: first ε as a multiple of 1/√rank, share of the rows that it starts with,
whether the partner takes part. The first finds most; the others what it misses."""


_DOUBTS = 4
_FITS = 1e-3
_SHARED = 0.9
_ROUNDS = 6
_LEAST = 1e-8


@dataclass(frozen=True, eq=False)
class SparseBasis:
    """Directions q for which ``left @ q`` has many exact zeros.

    Attributes:
        directions: (found, rank), unit vectors, independent, sparsest first.
        zeros: Per direction how many of its entries are zero.
        rounds: How many batches of starts it took.
    """

    directions: Tensor
    zeros: tuple[int, ...]
    rounds: int


def sparse_basis(
    left: Tensor,
    partner: Tensor | None,
    *,
    generator: torch.Generator,
    starts: int = 64,
    patience: int = 20,
    merged: bool = False,
    deadline: float | None = None,
) -> SparseBasis:
    """Find as many independent sparse directions as the space has.

    From random starts minimises Σ log(r² + ε²) over the rows r of ``left @ q``, with ε
    falling: each step takes the smallest eigenvector of the re-weighted normal matrix.
    Starts are drawn outside the span of what was found. In some rounds a second factor
    whose columns are zero at the same places (the activations of the same units)
    shares the weights.

    Args:
        left: (rows, rank), float64: an orthonormal basis of the column space.
        partner: (rows, rank) of the other factor, or None.
        generator: Of the starts, on the CPU.
        starts: A round.
        patience: Rounds without anything new after which it ends.
        merged: True where some directions stand for equal samples, whose zeros are
            those that all of them share.
        deadline: Of ``time.monotonic``; None: no bound.
    """
    size = left.norm(dim=1)
    if left.shape[1] == 1:
        nothing = int((size <= _TIGHTER[-1] * size.max()).sum())
        return SparseBasis(torch.ones(1, 1, dtype=left.dtype), (nothing,), 0)
    rows = size > 1e-6 * size.max()
    a = left[rows] / size[rows, None]
    b = None
    if partner is not None:
        b = partner[rows]
        b = b / b.norm(dim=1, keepdim=True).clamp_min(1e-30)
    found = _Found(a, b, len(left), merged)
    idle = rounds = 0
    while idle < patience and not (found.complete and idle >= found.doubts):
        if not found.chosen and rounds > patience // 4:
            break
        if deadline is not None and time.monotonic() > deadline:
            break
        first, share, joint = _SETTINGS[rounds % len(_SETTINGS)]
        begin = found.starts(starts, generator)
        used = torch.rand(starts, len(a), generator=generator, dtype=a.dtype) < share
        before = found.chosen
        for q in _descend(a, b if joint else None, begin, first=first, used=used):
            found.consider(q)
        found.choose()
        idle = idle + 1 if found.chosen == before else 0
        rounds += 1
    chosen = found.chosen
    directions = [found.directions[i] for i in chosen]
    stacked = torch.stack(directions) if directions else a.new_zeros(0, a.shape[1])
    return SparseBasis(stacked, tuple(found.zeros[i] for i in chosen), rounds)


def _descend(
    a: Tensor, b: Tensor | None, q: Tensor, *, first: float, used: Tensor
) -> Tensor:
    """(starts, rank) of unit vectors after the re-weighted steps."""
    first = first / a.shape[1] ** 0.5
    weight = used.to(a.dtype)
    for step in range(_STEPS):
        eps = first * (_LAST / first) ** (step / (_STEPS - 1))
        if step > _STEPS * 2 // 3:
            weight = torch.ones_like(weight)
        rest = (q @ a.T).square() + eps * eps
        if b is not None:
            other = _smallest(b, weight / rest)
            rest = rest + (other @ b.T).square() + eps * eps
        q = _smallest(a, weight / rest)
    return q


def _smallest(rows: Tensor, weight: Tensor) -> Tensor:
    """Smallest eigenvector of ``rowsᵀ diag(weight) rows``, one for each start."""
    matrix = (rows.T[None] * weight[:, None]) @ rows
    smallest: Tensor = torch.linalg.eigh(matrix).eigenvectors[:, :, 0]
    return smallest


def null_vector(rows: Tensor) -> Tensor:
    """The unit vector that is orthogonal to all rows but a few that do not belong.

    A tiny entry may pass for zero: rows that do not fit count less and less.

    Args:
        rows: (count, rank).
    """
    weight = torch.ones(len(rows), dtype=rows.dtype)
    for _ in range(_ROUNDS):
        _, _, vh = torch.linalg.svd(weight[:, None] * rows, full_matrices=False)
        weight = _LEAST / ((rows @ vh[-1]).abs() + _LEAST)
    q: Tensor = vh[-1]
    return q


@dataclass(eq=False)
class _Found:
    """Sparse directions so far, and which of them make the best basis."""

    rows: Tensor
    partner: Tensor | None
    count: int
    merged: bool
    directions: list[Tensor] = field(default_factory=list)
    zeros: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True when the chosen ones span everything."""
        return len(self.chosen) == self.rows.shape[1]

    @property
    def doubts(self) -> int:
        """Rounds that must bring nothing better before a complete basis is believed.

        None where all samples have about as many zeros. One with far fewer may be a
        mixture: ReLU is zero at much the same units for similar images.
        """
        zeros = torch.tensor([float(self.zeros[i]) for i in self.chosen])
        share = float(zeros.mean()) / self.count
        spread = (self.count * share * (1 - share)) ** 0.5
        return 0 if float(zeros.min()) > float(zeros.mean()) - 5 * spread else _DOUBTS

    def starts(self, count: int, generator: torch.Generator) -> Tensor:
        """Random unit vectors, more or less outside the span of what was found."""
        rank = self.rows.shape[1]
        q = torch.randn(count, rank, generator=generator, dtype=self.rows.dtype)
        if self.chosen:
            known = torch.stack([self.directions[i] for i in self.chosen])
            basis = torch.linalg.qr(known.T)[0]
            # Not all of it: where one is missing that would leave a single start.
            out = torch.linspace(1, 0, count, dtype=q.dtype)[:, None].sqrt()
            q = q - out * ((q @ basis) @ basis.T)
        starts: Tensor = q / q.norm(dim=1, keepdim=True)
        return starts

    def consider(self, q: Tensor) -> None:
        """Refine ``q`` on its zero rows; keep it if it is sparse and new."""
        rank = len(q)
        for bound in _TIGHTER:
            near = (self.rows @ q).abs() < bound
            if int(near.sum()) < rank - 1 or self._known(q):
                return
            # The null vector of the rows that it makes zero: exact where it was near.
            q = null_vector(self.rows[near])
        near = (self.rows @ q).abs() < _TIGHTER[-1]
        # Any rank - 1 rows have a null vector; more zeros than that need a reason.
        if int(near.sum()) <= rank or self._known(q) or not self._shared(near):
            return
        self.directions.append(q)
        self.zeros.append(int(near.sum()))

    def _shared(self, near: Tensor) -> bool:
        """Whether the partner has a vector with the same zeros: mixtures have none."""
        if self.partner is None:
            return True
        rows = self.partner[near]
        fits = (rows @ null_vector(rows)).abs() < _FITS
        return float(fits.double().mean()) > _SHARED

    def _known(self, q: Tensor) -> bool:
        return any(float((q @ d).abs()) > 1 - _PARALLEL for d in self.directions)

    def choose(self) -> None:
        """The independent ones with most zeros, greedily."""
        self.chosen = []
        basis: list[Tensor] = []
        for i in sorted(range(len(self.zeros)), key=lambda i: -self.zeros[i]):
            if self.zeros[i] < self._enough():
                break
            rest = self.directions[i]
            for known in basis:
                rest = rest - (rest @ known) * known
            if float(rest.norm()) > _INDEPENDENT and len(basis) < self.rows.shape[1]:
                basis.append(rest / rest.norm())
                self.chosen.append(i)

    def _enough(self) -> float:
        """More zeros than a mixture of two samples can have.

        It is zero only where both are, and at rank - 2 rows more.
        """
        if self.merged:
            return self.rows.shape[1] + 2
        gone = self.count - len(self.rows)
        most = max(self.zeros)
        usual = [z for z in self.zeros if z > most / 2]
        share = (sum(usual) / len(usual) + gone) / self.count
        return share**2 * self.count + self.rows.shape[1] + 6 - gone
