"""Linear layers whose gradient is of low rank: no more than the rows that they saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import Gradients, Observation, Target

WORTH = 2
"""A rank this many times below the full one leaves something to be gained."""


@dataclass(frozen=True)
class LinearLayer:
    """A layer, and how many rows its gradient is a sum over.

    Attributes:
        weight: Name of its weight, (out, in).
        bias: Name of its bias; None: not shared, or none.
        rank: Bound on the rank of the weight's gradient, joined by the bias's.
        first: Its input is the image, not what an earlier layer made of it.
    """

    weight: str
    bias: str | None
    rank: int
    first: bool

    def joined(self, gradients: Gradients) -> Tensor:
        """Weight and bias gradient side by side, (out, in + 1) in float64.

        Both are sums over δ_b of the same rows: the bias sees an input of 1.
        """
        parts = [gradients[self.weight].detach().double()]
        if self.bias is not None:
            parts.append(gradients[self.bias].detach().double()[:, None])
        return torch.cat(parts, 1)

    def parted(self, joined: Tensor, gradients: Gradients) -> Mapping[str, Tensor]:
        """The inverse of :meth:`joined`, as ``gradients`` are typed."""
        weight = gradients[self.weight]
        parts = {self.weight: joined[:, : weight.shape[1]].to(weight)}
        if self.bias is not None:
            parts[self.bias] = joined[:, -1].to(weight)
        return parts


def linear_layers(
    target: Target, observation: Observation, generator: torch.Generator
) -> list[LinearLayer]:
    """Those whose rank is well below the full one; none where signs are sent."""
    from privaudit.attacks._scene import structure_of

    local = target.exposure.local
    if local is not None and not local.sums_gradients:
        return []
    structure, found = structure_of(target, observation, generator), []
    for op in structure.ops:
        value = observation.gradients.get(op.weight or "")
        if op.kind != "linear" or value is None or structure.uses(op.weight) != 1:
            continue
        rows = op.input.numel() // max(1, op.input.shape[-1])
        if rows * WORTH <= min(value.shape):
            shared = op.bias if op.bias in observation.gradients else None
            first = op is structure.first
            found.append(LinearLayer(op.weight or "", shared, rows, first))
    return found


def noise_of(layers: Sequence[LinearLayer], gradients: Gradients) -> float | None:
    """Standard deviation of what the largest layer has beyond its rank, an entry."""
    if not layers:
        return None
    largest = max(layers, key=lambda one: gradients[one.weight].numel())
    joined = largest.joined(gradients)
    return noise_beyond(joined, nearest(joined, largest.rank), largest.rank)


def noise_beyond(matrix: Tensor, lower: Tensor, rank: int) -> float:
    """Standard deviation of noise, from what the nearest of low rank leaves over."""
    free = (matrix.shape[0] - rank) * (matrix.shape[1] - rank)
    return float(((matrix - lower).square().sum() / max(1, free)) ** 0.5)


def nearest(matrix: Tensor, rank: int) -> Tensor:
    """The nearest matrix of that rank: projected on its leading singular vectors.

    Source: Eckart 1936.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return nearest(matrix.T, rank).T
    leading: Tensor = torch.linalg.eigh(matrix @ matrix.T).eigenvectors[:, -rank:]
    projected: Tensor = leading @ (leading.T @ matrix)
    return projected
