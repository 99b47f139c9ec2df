"""Of all images that the features allow, the one most like a photograph.

The images allowed are given patch by patch, as ``base + own·θ + common·ζ``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from privaudit.attacks._linear_krylov import conjugate
from privaudit.attacks._linear_prior import QuadraticPrior

_ROUNDS = 6
_STEPS = 60
_ENOUGH = 1e-4


@dataclass(frozen=True, eq=False)
class Patches:
    """How an image is made of patches that do not overlap.

    Attributes:
        size: (height, width) of a patch.
        image: (height, width) of the image.
    """

    size: tuple[int, int]
    image: tuple[int, int]

    def take(self, images: Tensor) -> Tensor:
        """(batch, patches, values): row by row, channel by channel within one."""
        return F.unfold(images, self.size, stride=self.size).transpose(1, 2)

    def join(self, patches: Tensor) -> Tensor:
        """Inverse of :meth:`take`."""
        columns = patches.transpose(1, 2)
        return F.fold(columns, self.image, self.size, stride=self.size)


@dataclass(frozen=True, eq=False)
class PatchSets:
    """All patches that the features allow.

    Attributes:
        patches: How they make an image.
        base: (batch, patches, values): one that is allowed.
        own: (batch, patches, values, k): directions of each patch, few.
        common: (values, r): orthonormal directions of every patch.
        rows: (batch, patches, pins, k): what else is known: ``rows θ ≈ pinned``, in
            units of its standard deviation.
        pinned: (batch, patches, pins).
        precision: (r,): one by the variance of ζ around 0; 0 where it may be anything.
    """

    patches: Patches
    base: Tensor
    own: Tensor
    common: Tensor
    rows: Tensor
    pinned: Tensor
    precision: Tensor

    @property
    def free(self) -> int:
        """Directions left open per patch."""
        return self.own.shape[-1] + self.common.shape[-1]

    def images(self, moves: Tensor) -> Tensor:
        """What ``moves``, (batch, patches, k + r), add to the image of ``base``."""
        own, common = self._parts(moves)
        return self.patches.join(_apply(self.own, own) + common @ self.common.T)

    def project(self, images: Tensor) -> Tensor:
        """Transpose of :meth:`images`."""
        values = self.patches.take(images)
        own = _apply(self.own.transpose(-1, -2), values)
        return torch.cat([own, values @ self.common], -1)

    def pull(self, moves: Tensor) -> Tensor:
        """``rowsᵀ rows θ`` and ``precision ζ``, as ``moves``."""
        own, common = self._parts(moves)
        pulled = _apply(self.rows.transpose(-1, -2), _apply(self.rows, own))
        return torch.cat([pulled, self.precision * common], -1)

    def pull_of_pinned(self) -> Tensor:
        """``rowsᵀ pinned``, as moves."""
        pulled = _apply(self.rows.transpose(-1, -2), self.pinned)
        missing = pulled.new_zeros(*pulled.shape[:2], self.common.shape[-1])
        return torch.cat([pulled, missing], -1)

    def _parts(self, moves: Tensor) -> tuple[Tensor, Tensor]:
        count = self.own.shape[-1]
        return moves[..., :count], moves[..., count:]


def smoothest(sets: PatchSets) -> Tensor:
    """(batch, channels, height, width): the smoothest of the images allowed.

    By least squares whose prior is laid anew in each round.
    """
    images = sets.patches.join(sets.base)
    if sets.free == 0:
        return images
    prior = QuadraticPrior.even(images)
    moves = images.new_zeros(*sets.base.shape[:2], sets.free)
    for _ in range(_ROUNDS):
        step = _step(sets, prior, images, moves)
        moves, images = moves + step, images + sets.images(step)
        prior = QuadraticPrior.at(images)
    return images


def _step(
    sets: PatchSets, prior: QuadraticPrior, images: Tensor, moves: Tensor
) -> Tensor:
    """To the least sum of squares: of the prior, and of what is pinned."""
    missing = sets.pull_of_pinned() - sets.pull(moves)
    return conjugate(
        lambda m: sets.project(prior.curve(sets.images(m))) + sets.pull(m),
        missing - sets.project(prior.pull(images)),
        precondition=_uncoupled(sets, prior),
        steps=_STEPS,
        enough=_ENOUGH,
    )


def _uncoupled(sets: PatchSets, prior: QuadraticPrior) -> Callable[[Tensor], Tensor]:
    """The inverse as if no two pixels were coupled: exact for what is pinned."""
    level = sets.patches.take(prior.stiffness()).mean(-1, keepdim=True)
    blocks = level[..., None] * sets.own.transpose(-1, -2) @ sets.own
    inverse = torch.linalg.pinv(blocks + sets.rows.transpose(-1, -2) @ sets.rows)
    count = sets.own.shape[-1]
    return lambda m: torch.cat(
        [_apply(inverse, m[..., :count]), m[..., count:] / (level + sets.precision)], -1
    )


def _apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors[..., None])[..., 0]
