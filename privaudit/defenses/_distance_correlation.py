"""How much of the distances between images is left between what is sent of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureLayout

_ROUNDING = 1e-12
"""Squared distances below this, relative to squared lengths, are zero."""
_TINY = 1e-20


def distance_correlation(first: Tensor, second: Tensor) -> Tensor:
    """``dCor = sqrt(dCov²(x, h) / sqrt(dVar²(x)·dVar²(h)))``, a scalar in [0, 1].

    ``dCov² = mean(A∘B)`` over all pairs, A and B the distances within the batch with
    the means of rows and columns taken off. 1 where h is x but for scale, shift and
    rotation; 0 in the limit where they are independent. Biased upwards for small
    batches, most in many dimensions: compare values of one batch size.

    Args:
        first: (batch, batch) distances of one kind, as :func:`euclidean` gives them.
        second: The same images, another kind.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> x, other = torch.randn(2, 500, 1, generator=draws).unbind()
        >>> round(float(distance_correlation(euclidean(x), euclidean(-3 * x + 1))), 4)
        1.0
        >>> float(distance_correlation(euclidean(x), euclidean(other))) < 0.1
        True

    Source: Székely 2007, definitions 4 and 5.
    """
    a, b = _centred(first), _centred(second)
    spread = (a.square().mean() * b.square().mean() + _TINY).sqrt()
    # The root of zero has no derivative: both are kept off it.
    return ((a * b).mean().clamp_min(0) / spread + _TINY).sqrt()


def euclidean(values: Tensor) -> Tensor:
    """(batch, …) → (batch, batch) distances in double precision.

    Their gradient is zero where two rows are equal.
    """
    flat = _double(values.flatten(1))
    flat = flat - flat.mean(0)
    size = flat.square().sum(1)
    both = size[:, None] + size
    squared = both - 2 * flat @ flat.T
    apart = squared > _ROUNDING * both
    return torch.where(apart, squared, 1.0).sqrt() * apart


def cosine(values: Tensor, layout: FeatureLayout) -> Tensor:
    """(batch, …) → (batch, batch): one minus the mean cosine of tokens or positions.

    A vector counts as one position. Source: Lei 2025, eq. 11 and appendix D.2.
    """
    axis = 1 if layout.kind == "nchw" else -1
    unit = F.normalize(_double(values), dim=axis)
    positions = unit[0].numel() // unit.shape[axis]
    flat = unit.flatten(1)
    return 1 - flat @ flat.T / positions


def _double(values: Tensor) -> Tensor:
    return values if values.device.type == "mps" else values.double()


def _centred(distances: Tensor) -> Tensor:
    """In units of the mean distance, the means of rows and columns taken off."""
    scaled = distances / distances.mean().clamp_min(_TINY)
    by_row = scaled - scaled.mean(0, keepdim=True)
    return by_row - by_row.mean(1, keepdim=True)
