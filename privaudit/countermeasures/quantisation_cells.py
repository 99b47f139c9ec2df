"""Rounded values are compared with the cell that they stand for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from privaudit.countermeasures.base import Countermeasure, SeenFeatures

if TYPE_CHECKING:
    from privaudit.defenses import Detection

_MOST_BITS = 16
_ON_GRID = 0.02
"""How far from a level a value may be, in steps, by rounding of floats."""


class QuantisationCells(Countermeasure):
    """No error where the guess is rounded to what was sent.

    ``h*`` becomes ``clamp(h, h* − s/2, h* + s/2)``, with s the step between levels,
    evenly spread from the smallest to the largest value of an image. The number of
    bits is the smallest for which all values lie on levels.
    Source: design of this project.
    """

    name: ClassVar[str] = "quantisation_cells"
    title: ClassVar[str] = "Rounding taken into account"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset({"quantisation"})
    exposures: ClassVar[frozenset[str]] = frozenset({"features"})
    rank: ClassVar[int] = 15

    def see_features(
        self, seen: SeenFeatures, found: Detection, generator: torch.Generator
    ) -> SeenFeatures:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        features = seen.observation.features
        told = found.estimate.get("bits")
        bits = _bits(features) if told is None else round(told)
        if bits is None:
            note = f"{self.name}: values lie on no even levels; compared as they are"
            return replace(seen, notes=(*seen.notes, note))
        cells = _Cells(2**bits - 1)
        target = seen.target
        aimed = replace(
            target,
            comparisons=(*target.comparisons, cells),
            corruptions=(*target.corruptions, cells.rounded),
        )
        note = f"{self.name}: {bits} bits a value; no error inside a cell"
        return replace(seen, target=aimed, notes=(*seen.notes, note))


def _bits(features: Tensor) -> int | None:
    """The fewest bits whose levels hold all values of every image."""
    flat = features.flatten(1).double()
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    share = (flat - low) / (high - low).clamp_min(1e-300)
    rounding = torch.finfo(features.dtype).eps * flat.abs().amax(1, keepdim=True)
    unsure = rounding / (high - low).clamp_min(1e-300)
    for bits in range(1, _MOST_BITS + 1):
        levels = 2**bits - 1
        off = (share * levels - (share * levels).round()).abs()
        room = unsure * levels
        if bool((room < _ON_GRID).all()) and bool((off <= _ON_GRID).all()):
            return bits
    return None


@dataclass(frozen=True, eq=False)
class _Cells:
    """The comparison, and rounding as the defense does it."""

    levels: int

    def __call__(self, guess: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        _, step = self._range(observed)
        nearest = guess.detach().maximum(observed - step / 2)
        return guess, nearest.minimum(observed + step / 2)

    def rounded(self, features: Tensor, generator: torch.Generator) -> Tensor:
        low, step = self._range(features)
        step = torch.where(step > 0, step, 1)
        return low + ((features - low) / step).round() * step

    def _range(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest value and step of each image, (batch, 1, …)."""
        axes = tuple(range(1, features.dim()))
        low, high = features.amin(axes, keepdim=True), features.amax(axes, keepdim=True)
        return low, (high - low) / self.levels
