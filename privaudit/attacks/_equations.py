"""A gradient as equations for pixels and masks: what Gauss-Newton solves.

Source: this project (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from privaudit.exposure.predict import predict
from privaudit.types import Batch, Target

if TYPE_CHECKING:
    from privaudit.attacks._matching import Matching
    from privaudit.attacks._search import TapeOf

_GOAL = 1e-5
"""Relative error per parameter at which nothing more is to be had in float32."""
_FAINT = 1e-4
"""A parameter's gradient of a smaller share of the whole counts as of this share."""
_OUTSIDE = 0.03
"""Weight of the equation that a pixel, or a mask's entry, is in its range. Without it
some digits are not found, with .3 most are not (measured on LeNet); masks that may
leave their range fit the gradient as no masks can (.01 and .03 alike, .1 slower)."""
_SPREAD = 1.0
"""Shaken weights are within that power of ten of their own."""


def refusal(target: Target) -> str:
    """Why there are no equations; empty where there are."""
    if target.knowledge.joint and target.knowledge.labels is None:
        return "the labels are unknown: they would be unknowns of another kind"
    local = target.exposure.local
    if local is not None and not local.sums_gradients:
        return "the client sends signs, which have no slope"
    return ""


@dataclass(frozen=True, eq=False)
class Equations:
    """Guess less observation, as a share of each parameter's own gradient.

    Attributes:
        matching: Model and observation.
        tape_of: Puts masks into a tape.
        weights: By which a parameter counts more; 1 where left out.
    """

    matching: Matching
    tape_of: TapeOf
    weights: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, unknowns: Sequence[Tensor]) -> Tensor:
        """(equations,) with their graph, of the model's input and the masks.

        One more for each of them says that it is in its range.
        """
        matching = self.matching
        exposure, model = matching.target.exposure, matching.target.model
        batch = Batch(matching.scale.invert(unknowns[0]), matching.labels)
        tape = self.tape_of(unknowns[1:])
        guess = predict(exposure, model, batch, tape, factor=False).dense
        mine, theirs = dict(guess), dict(matching.observation.gradients)
        for compare in matching.target.comparisons:
            mine, theirs = map(dict, compare(mine, theirs))
        whole = sum(_norm(g) ** 2 for g in theirs.values()) ** 0.5
        parts = [
            (mine[n] - g.detach()).flatten()
            * (self.weights.get(n, 1.0) / max(_norm(g), _FAINT * whole, 1e-30))
            for n, g in theirs.items()
            if n in mine
        ]
        inside = [unknowns[0].clamp(*matching.box(unknowns[0]))]
        inside += [m.clamp(0, 1) for m in unknowns[1:]]
        outside = [
            _OUTSIDE * (u - i).flatten() for u, i in zip(unknowns, inside, strict=True)
        ]
        return torch.cat([*parts, *outside])

    @property
    def goal(self) -> float:
        """Squared norm at which it is solved: not nearer than the noise."""
        target = self.matching.target
        count = len(self.matching.observation.gradients)
        return count * max(_GOAL**2, target.noise_share)

    def shaken(self, generator: torch.Generator) -> Equations:
        """The same equations, each parameter's more or less important at random."""
        names = list(self.matching.observation.gradients)
        powers = _SPREAD * (2 * torch.rand(len(names), generator=generator) - 1)
        weights = dict(zip(names, (10**powers).tolist(), strict=True))
        return replace(self, weights=weights)


def _norm(tensor: Tensor) -> float:
    return float(tensor.detach().double().norm())
