"""Features of which each place sees one patch, all through one matrix.

Patch embeddings, whatever is added to them, and stems whose kernel is their stride. The
matrix is measured, not looked up: images that hold a different unit vector in each
patch show a column of it in each token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from privaudit.attacks._linear_map import ImageMap, random_images
from privaudit.attacks._linear_smooth import Patches
from privaudit.types import FeatureLayout

_AMPLITUDES = (256.0, 1.0)
"""Of the unit vectors: large ones drown rounding, small ones stay in the range of a
client that clamps."""
_MOST_PROBES = 256
_AGREES = 1e-5
_CHUNK = 8

Tokens = Callable[[Tensor], Tensor]
"""Images to (batch, places, channels)."""


@dataclass(frozen=True, eq=False)
class PatchMap:
    """``token = matrix @ patch + constant``, at every place.

    Attributes:
        matrix: (channels, values of a patch), float64 on the CPU.
        constants: (places, channels): what a black image gives.
        patches: How the image is cut.
    """

    matrix: Tensor
    constants: Tensor
    patches: Patches

    @cached_property
    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """Left vectors (channels, channels), values, right vectors (values, values)."""
        left, values, right = torch.linalg.svd(self.matrix)
        return left, values, right.T

    @property
    def condition(self) -> float:
        """Largest by smallest singular value; infinite where patches lose values."""
        values = self.svd[1]
        if len(values) < self.matrix.shape[1] or not values[-1] > 0:
            return float("inf")
        return float(values[0] / values[-1])

    def rank(self, tolerance: float) -> int:
        """How many singular values exceed ``tolerance`` times the largest."""
        values = self.svd[1]
        return int((values > tolerance * values[0]).sum())

    def inverse(self, rank: int) -> Tensor:
        """(values, channels): pseudo-inverse of the ``rank`` largest directions."""
        left, values, right = self.svd
        return (right[:, :rank] / values[:rank]) @ left[:, :rank].T

    def errors(self, noise: float) -> Tensor:
        """(values,): what noise of that size in tokens does to each right vector."""
        values = self.svd[1]
        missing = values.new_zeros(self.matrix.shape[1] - len(values))
        return noise / torch.cat([values, missing]).clamp_min(1e-300)

    def unreached(self, tolerance: float) -> Tensor:
        """(channels, c): directions in which no patch moves a token."""
        return self.svd[0][:, self.rank(tolerance) :]


def has_places(features: Tensor, layout: FeatureLayout) -> bool:
    """Whether each place of a grid has its own row of these features."""
    if layout.grid is None or layout.kind == "vector":
        return False
    if features.dim() != (3 if layout.kind == "tokens" else 4):
        return False
    return tokens_of(features, layout).shape[1] == layout.grid[0] * layout.grid[1]


def tokens_of(features: Tensor, layout: FeatureLayout) -> Tensor:
    """(batch, places, channels), float64 on the CPU, without prefix tokens."""
    values = features.detach().cpu().double()
    if layout.kind == "tokens":
        return values[:, layout.prefix_tokens :]
    if layout.kind == "nhwc":
        return values.flatten(1, 2)
    return values.flatten(2).transpose(1, 2)


def find_patches(
    tokens: Tokens, image_map: ImageMap, generator: torch.Generator
) -> PatchMap | None:
    """Measure the matrix; None where tokens are not made of one patch each.

    Args:
        tokens: What shows the patches, before any norm.
        image_map: The images that the model takes, and the layout.
        generator: Source of the images that the matrix is checked with.
    """
    patches = _grid_of(image_map)
    if patches is None:
        return None
    checks = random_images(image_map, generator)
    for amplitude in _AMPLITUDES:
        found = _measured(tokens, image_map, patches, amplitude=amplitude)
        if found is not None and all(_explains(found, tokens, i) for i in checks):
            return found
    return None


def _grid_of(image_map: ImageMap) -> Patches | None:
    grid = image_map.target.exposure.layout.grid
    channels, height, width = image_map.shape
    if grid is None or height % grid[0] or width % grid[1]:
        return None
    size = (height // grid[0], width // grid[1])
    probes = -(-channels * size[0] * size[1] // (grid[0] * grid[1]))
    return Patches(size, (height, width)) if probes <= _MOST_PROBES else None


def _measured(
    tokens: Tokens, image_map: ImageMap, patches: Patches, *, amplitude: float
) -> PatchMap | None:
    black = torch.zeros(1, *image_map.shape, device=image_map.device)
    constants = tokens(black)[0]
    count, values = len(constants), patches.take(black).shape[2]
    columns = []
    for first in range(0, values, count * _CHUNK):
        units = torch.eye(values, device=black.device)[first : first + count * _CHUNK]
        filled = torch.zeros(-(-len(units) // count) * count, values).to(units)
        filled[: len(units)] = units * amplitude
        images = patches.join(filled.view(-1, count, values))
        moved = (tokens(images) - constants) / amplitude
        columns.append(moved.flatten(0, 1)[: len(units)])
    return PatchMap(torch.cat(columns).T, constants, patches)


def _explains(found: PatchMap, tokens: Tokens, images: Tensor) -> bool:
    patch = found.patches.take(images).cpu().double()
    real = tokens(images)
    gap = patch @ found.matrix.T + found.constants - real
    moved = (real - found.constants).norm()
    return bool(moved > 0) and bool(gap.norm() <= _AGREES * moved)
