"""The scale of a guess is fitted before it is compared: clipping has changed it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.countermeasures.base import Countermeasure, SeenGradient
from privaudit.defenses.base import GRADIENT

if TYPE_CHECKING:
    from privaudit.defenses import Detection
    from privaudit.types import Gradients


class ScaleFree(Countermeasure):
    """The guess g is compared as s·g, with s = ⟨g, g*⟩ / ⟨g, g⟩, the best there is.

    The cosine is blind to scale anyway; squared and layer-wise distances become so,
    and the residuals by which closed forms settle a brightness.
    Source: design of this project.
    """

    name: ClassVar[str] = "scale_free"
    title: ClassVar[str] = "Scale fitted"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset({"gradient_clipping", "dp_sgd"})
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    rank: ClassVar[int] = 70

    def see_gradient(
        self, seen: SeenGradient, found: Detection, generator: torch.Generator
    ) -> SeenGradient:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        target = replace(seen.target, comparisons=(*seen.target.comparisons, rescaled))
        note = "scale fitted: gradients are compared up to one factor"
        return replace(seen, target=target, notes=(*seen.notes, note))


def rescaled(guess: Gradients, observed: Gradients) -> tuple[Gradients, Gradients]:
    """The guess times what brings it nearest; never turned round."""
    pairs = [(guess[n], o) for n, o in observed.items() if n in guess]
    if not pairs:
        return guess, observed
    inner = torch.stack([(g * o).sum() for g, o in pairs]).sum()
    square = torch.stack([g.square().sum() for g, _ in pairs]).sum()
    tiny = torch.finfo(square.dtype).tiny
    factor = inner.clamp_min(0) / square.clamp_min(tiny)
    return {n: g * factor for n, g in guess.items()}, observed
