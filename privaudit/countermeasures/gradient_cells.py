"""A rounded entry says where its cell is: inside of it nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.countermeasures.base import Countermeasure, SeenGradient
from privaudit.defenses.base import GRADIENT

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.defenses import Detection
    from privaudit.types import Gradients

COARSE = 8
"""Levels up to which cells are compared."""


class GradientCells(Countermeasure):
    """What was observed moves to the guess, half a rounding step at most.

    The step of each parameter is its smallest distance between two levels. A guess
    inside all cells is at distance zero. Only of coarse rounding: with sixteen levels
    or more the middle of a cell says more than its walls (measured).
    Source: design of this project.
    """

    name: ClassVar[str] = "gradient_cells"
    title: ClassVar[str] = "Rounding cells"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset({"quantisation"})
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    rank: ClassVar[int] = 15

    def see_gradient(
        self, seen: SeenGradient, found: Detection, generator: torch.Generator
    ) -> SeenGradient:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        sent = seen.observation.gradients
        largest = max(sent.values(), key=lambda g: g.numel())
        # Small parameters have few levels anyway: the largest tells how many there are.
        if not is_coarse(largest):
            note = f"rounding cells: more than {COARSE} levels, compared as sent"
            return replace(seen, notes=(*seen.notes, note))
        coarse = {n: g for n, g in sent.items() if is_coarse(g)}
        cells = Cells(coarse, {n: step_of(g) for n, g in coarse.items()})
        target = replace(seen.target, comparisons=(*seen.target.comparisons, cells))
        note = f"rounding cells: {len(coarse)} parameters with {COARSE} levels at most"
        return replace(seen, target=target, notes=(*seen.notes, note))


class Cells:
    """Moves the observation inside its cells.

    Args:
        centres: What was sent, by parameter.
        steps: Width of a cell, likewise.
    """

    def __init__(self, centres: Gradients, steps: Gradients) -> None:
        self._centres, self._steps = centres, steps

    def __call__(
        self, guess: Gradients, observed: Gradients
    ) -> tuple[Gradients, Gradients]:
        """What was observed, as near to the guess as its cells allow."""
        moved = dict(observed)
        for name in observed.keys() & guess.keys() & self._centres.keys():
            centre, half = self._centres[name], self._steps[name] / 2
            moved[name] = guess[name].detach().clamp(centre - half, centre + half)
        return guess, moved


def step_of(values: Tensor) -> Tensor:
    """The smallest distance between two levels, rounding aside; 0 of a single one."""
    levels = torch.unique(values.detach().double())
    if len(levels) < 2:
        return values.new_zeros(())
    gaps = levels.diff()
    # Levels are float32: two that differ in the last digit only are one.
    real = gaps[gaps > 1e-6 * (levels[-1] - levels[0])]
    step: Tensor = real.min().to(values)
    return step


def is_coarse(values: Tensor) -> bool:
    """True where there are few levels, and more entries than levels."""
    levels = len(torch.unique(values.detach()))
    return 2 <= levels <= COARSE and values.numel() > levels
