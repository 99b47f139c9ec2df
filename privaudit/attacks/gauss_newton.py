"""``gauss_newton``: the gradient as a system of equations, solved and not searched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from privaudit.attacks._levenberg import Effort, least_squares
from privaudit.attacks._mask_search import MaskSearch
from privaudit.attacks._matching import Matching
from privaudit.attacks._search import (
    Plan,
    TapeOf,
    bare_scene,
    report,
    require_labels,
    scene_of,
)
from privaudit.attacks.base import Attack
from privaudit.distances import SquaredL2
from privaudit.exposure.predict import predict
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.attacks._minimise import Descent
    from privaudit.config import Budget

_GOAL = 1e-5
"""Relative error per parameter at which nothing more is to be had in float32."""
_FAINT = 1e-4
"""A parameter's gradient of a smaller share of the whole counts as of this share."""
_GREY = 0.5
_BLOTCHES = 4
_OUTSIDE = 0.03
"""Weight of the equation that a pixel is in its range. Without it some digits are not
found, with .3 most are not (measured on LeNet)."""


class GaussNewton(Attack):
    """Solves ``g(x) = g*`` for the pixels, each parameter's gradient in its own units.

    A gradient has more entries than an image has pixels: for models without kinks
    (sigmoid, tanh, GELU, SiLU; strided or average pooling) it determines the image, and
    damped Gauss-Newton steps reach that image in seconds where first-order search stops
    halfway. Masks that the gradient shows are put in; others are unknowns of their own.
    Rectifiers and max-pooling have kinks between which it gets stuck. What it finds
    there counts, but its end clears nothing, so no verdict waits for it.

    Source: this project (docs/decisions/0015); steps as Levenberg 1944, Marquardt 1963.
    """

    name: ClassVar[str] = "gauss_newton"
    title: ClassVar[str] = "Gauss-Newton"
    source: ClassVar[str] = "this project; cf. Levenberg 1944, Marquardt 1963"
    required: ClassVar[bool] = False

    steps: int = Field(default=100, ge=1)
    """Linearisations of one start at most."""
    products: int = Field(default=2400, ge=1)
    """Steps of conjugate gradients for one of them at most."""
    work: int = Field(default=40_000, ge=1)
    """Of them for all linearisations and starts together."""
    starts: int = Field(default=8, ge=1)
    """How many at most: grey, then smooth random pictures."""

    @classmethod
    def tiny(cls) -> GaussNewton:
        """A few steps from one start."""
        return cls(steps=8, products=100, starts=1)

    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> Reconstruction:
        """See :class:`~privaudit.attacks.base.Attack`."""
        reason = _refusal(target)
        if reason:
            return Reconstruction(None, "skipped", reason)
        deadline = None
        if budget.seconds is not None:
            deadline = time.monotonic() + budget.seconds
        scene = scene_of(target, observation, generator)
        masks = MaskSearch(scene, "analytical")
        labels = require_labels(scene.labels)
        matching = Matching(target, observation, labels, SquaredL2(), ())
        steps = min(self.steps, budget.iterations or self.steps)
        work = self.work
        wanted = min(self.starts, budget.restarts or self.starts)
        equations = _Equations(matching, masks.tape_of, _OUTSIDE)
        runs: list[Descent] = []
        for number in range(wanted):
            effort = Effort(steps, self.products, work, deadline)
            if runs and (work <= 0 or not effort.in_time()):
                break
            images = _start(matching, number, generator)
            found = least_squares(
                equations,
                [images, *masks.neutral()],
                [None, *masks.held],
                goal=equations.goal,
                effort=effort,
            )
            work -= found.products
            inputs, *ends = found.best
            runs.append(replace(found, best=[inputs, *(m.clamp(0, 1) for m in ends)]))
            if runs[-1].end in ("goal", "interrupted"):
                break
        plan = Plan(masks.neutral, masks.tape_of)
        return report(matching, plan, runs, wanted)

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        if _refusal(target):
            return None
        bare_scene(target, observation, torch.Generator())
        matching = Matching(target, observation, batch.labels, SquaredL2(), ())
        inputs = matching.scale.apply(batch.images)
        equations = _Equations(matching, lambda _: tape, 0.0)
        return float(equations([inputs]).detach().double().square().sum())


def _refusal(target: Target) -> str:
    """Why there are no equations; empty where there are."""
    if target.knowledge.joint and target.knowledge.labels is None:
        return "the labels are unknown: they would be unknowns of another kind"
    local = target.exposure.local
    if local is not None and not local.sums_gradients:
        return "the client sends signs, which have no slope"
    return ""


def _start(matching: Matching, number: int, generator: torch.Generator) -> Tensor:
    """Grey for a single image, else smooth pictures that differ from each other."""
    size, shape = matching.observation.batch_size, matching.observation.image_shape
    device = next(iter(matching.observation.gradients.values())).device
    if number == 0 and size == 1:
        pixels = torch.full((size, *shape), _GREY)
    else:
        few = torch.rand(size, shape[0], _BLOTCHES, _BLOTCHES, generator=generator)
        pixels = F.interpolate(few, shape[1:], mode="bilinear", align_corners=True)
    return matching.scale.apply(pixels.to(device))


@dataclass(frozen=True, eq=False)
class _Equations:
    """Guess less observation, as a share of each parameter's own gradient.

    Attributes:
        matching: Model and observation.
        tape_of: Puts masks into a tape.
        outside: Weight of the equations that keep pixels in their range.
    """

    matching: Matching
    tape_of: TapeOf
    outside: float

    def __call__(self, unknowns: Sequence[Tensor]) -> Tensor:
        """(equations,) with their graph, of the model's input and the masks.

        One more for each pixel says that it is in its range.
        """
        matching = self.matching
        exposure, model = matching.target.exposure, matching.target.model
        batch = Batch(matching.scale.invert(unknowns[0]), matching.labels)
        tape = self.tape_of(unknowns[1:])
        guess = predict(exposure, model, batch, tape, factor=False).dense
        mine, theirs = dict(guess), dict(matching.observation.gradients)
        for compare in matching.target.comparisons:
            mine, theirs = map(dict, compare(mine, theirs))
        whole = sum(float(g.double().square().sum()) for g in theirs.values()) ** 0.5
        parts = [
            (mine[n] - g.detach()).flatten()
            / max(float(g.double().norm()), _FAINT * whole, 1e-30)
            for n, g in theirs.items()
            if n in mine
        ]
        low, high = matching.box(unknowns[0])
        outside = unknowns[0] - unknowns[0].clamp(low, high)
        return torch.cat([*parts, self.outside * outside.flatten()])

    @property
    def goal(self) -> float:
        """Squared norm at which it is solved: not nearer than the noise."""
        target = self.matching.target
        count = len(self.matching.observation.gradients)
        return count * max(_GOAL**2, target.noise_share)
