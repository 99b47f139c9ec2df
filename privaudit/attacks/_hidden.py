"""The inputs of a linear layer, sample by sample, from its own gradient.

A gradient ``Δ H`` has the row space of the layer's inputs H. Where the zeros of a
sample's row are known, that row alone lies in the space and has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._masks import elementwise
from privaudit.attacks._scene import Scene
from privaudit.attacks._sparse import null_vector
from privaudit.tape import Op

_ROUNDING = 3e-7
_LARGEST = 1e-2
_ZERO = 1e-5


@dataclass(frozen=True, eq=False)
class RowSpace:
    """What the inputs of a layer span.

    Attributes:
        basis: (in, rank), orthonormal.
        zero: Share of a row's largest entry below which an entry is rounding.
    """

    basis: Tensor
    zero: float


def next_layer(scene: Scene, op: Op) -> Op | None:
    """The linear layer whose inputs are, unit by unit, the outputs of ``op``."""
    later = False
    for other in scene.structure.ops:
        alike = other.kind == "linear" and other.input.shape == op.output.shape
        if later and alike and elementwise(op.output, other.input):
            own = other.weight is not None and scene.structure.uses(other.weight) == 1
            return other if own else None
        later = later or other is op
    return None


def row_space(scene: Scene, op: Op | None, rank: int) -> RowSpace | None:
    """The space of what ``op`` was given; None where it does not show."""
    gradient = None if op is None else scene.gradient(op.weight)
    if gradient is None or rank > min(gradient.shape) or not bool(gradient.any()):
        return None
    _, s, vh = torch.linalg.svd(gradient.cpu(), full_matrices=False)
    # Rounding of float32 weighs most on the direction that shows least.
    zero = max(_ZERO, 30 * _ROUNDING * float(s[0] / s[rank - 1].clamp_min(1e-300)))
    return RowSpace(vh[:rank].T, zero) if zero < _LARGEST else None


def rows_by_zeros(space: RowSpace, zero: Tensor) -> Tensor:
    """The row of each sample, up to scale and sign.

    Args:
        space: Of the layer's inputs.
        zero: (samples, units) where a sample's row should be zero.

    Returns:
        (samples, units), unit vectors with exact zeros.
    """
    found = []
    for where in zero:
        h = space.basis @ null_vector(space.basis[where])
        h = torch.where(h.abs() <= space.zero * h.abs().max(), 0, h)
        found.append(h / h.norm().clamp_min(1e-30))
    return torch.stack(found)
