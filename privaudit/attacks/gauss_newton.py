"""``gauss_newton``: the gradient as a system of equations, solved and not searched."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from privaudit.attacks._equations import Equations, refusal
from privaudit.attacks._kinks import has_kinks
from privaudit.attacks._levenberg import Effort, Walked, least_squares
from privaudit.attacks._mask_search import MaskSearch
from privaudit.attacks._matching import Matching
from privaudit.attacks._search import (
    Plan,
    bare_scene,
    report,
    require_labels,
    scene_of,
)
from privaudit.attacks.base import Attack
from privaudit.distances import SquaredL2
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.attacks._minimise import Descent
    from privaudit.config import Budget

KINKS = (
    "the gradient jumps as the image changes (rectifiers, max-pooling): no slope leads "
    "to the image from here"
)
_KINKED = 1.0
"""Damping beyond which a model with kinks is given up."""
_MANY = 2400
"""Steps of conjugate gradients in all, where most unknowns are masks."""
_GREY = 0.5
_BLOTCHES = 4
"""Side, in random values, of the smooth random pictures that batches start from."""
_SHAKEN = 15
"""Steps with other weights."""


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
    """Linearisations from one place at most."""
    products: int = Field(default=2400, ge=1)
    """Steps of conjugate gradients for one of them at most."""
    work: int = Field(default=60_000, ge=1)
    """Of them for all linearisations together."""
    shakes: int = Field(default=20, ge=0)
    """How often at most a place where it gets stuck is left: by some steps for which
    each parameter counts more or less, at random."""
    most_masks: float = Field(default=10.0, ge=0)
    """Unknown mask entries for each pixel value beyond which it does not run: a search
    finds most of so many sooner (``dropout_inversion``, which can refine them after).
    """

    @classmethod
    def tiny(cls) -> GaussNewton:
        """A few steps from one start."""
        return cls(steps=8, products=100, shakes=1)

    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> Reconstruction:
        """See :class:`~privaudit.attacks.base.Attack`."""
        reason = refusal(target)
        if reason:
            return Reconstruction(None, "skipped", reason)
        scene = scene_of(target, observation, generator)
        masks = MaskSearch(scene, "analytical")
        reason, work = self._too_many(masks, observation), self.work
        if reason and target.noise_share:
            # Nothing else solves what is noisy: it runs, but not for hours.
            work = min(work, _MANY)
        elif reason:
            return Reconstruction(None, "skipped", reason)
        labels = require_labels(scene.labels)
        matching = Matching(target, observation, labels, SquaredL2(), ())
        legs = _Legs(
            Equations(matching, masks.tape_of),
            held=[None, *masks.held],
            steps=self.steps,
            most=budget.iterations,
            effort=replace(self._effort(matching, budget), work=work),
        )
        place = [_start(matching, generator), *masks.neutral()]
        wanted = 1 + min(self.shakes, budget.restarts or self.shakes)
        for _ in range(wanted):
            place = legs.settle(place)
            if not legs.over:
                place = legs.shake(place, generator)
            if legs.over:
                break
        if legs.effort.in_time():  # it is done, whatever the places it saw
            wanted = len(legs.runs)
        plan = Plan(masks.neutral, masks.tape_of)
        outcome = report(matching, plan, legs.runs, wanted)
        if legs.kinked and outcome.state != "exact":
            outcome = replace(outcome, notes=(*outcome.notes, KINKS))
        return outcome

    def _effort(self, matching: Matching, budget: Budget) -> Effort:
        """What may be spent; where there are kinks, less on steps that fail."""
        effort = Effort(self.steps, self.products, self.work, _deadline(budget))
        if has_kinks(matching):
            return replace(effort, stiffest=_KINKED)
        return effort

    def _too_many(self, masks: MaskSearch, observation: Observation) -> str:
        """Why the masks are too many; empty where they are not."""
        values = observation.batch_size * math.prod(observation.image_shape)
        if masks.unknown <= self.most_masks * values:
            return ""
        return (
            f"{masks.unknown:,} mask entries do not show, for {values:,} pixel values: "
            "dropout_inversion can search them first, and refine that (refine=)"
        )

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        if refusal(target):
            return None
        bare_scene(target, observation, torch.Generator())
        matching = Matching(target, observation, batch.labels, SquaredL2(), ())
        inputs = matching.scale.apply(batch.images)
        equations = Equations(matching, lambda _: tape)
        return float(equations([inputs]).detach().double().square().sum())


def _deadline(budget: Budget) -> float | None:
    """Of ``time.monotonic``."""
    return None if budget.seconds is None else time.monotonic() + budget.seconds


def _start(matching: Matching, generator: torch.Generator) -> Tensor:
    """Grey for a single image, else smooth pictures that differ from each other."""
    size, shape = matching.observation.batch_size, matching.observation.image_shape
    device = next(iter(matching.observation.gradients.values())).device
    if size == 1:
        pixels = torch.full((size, *shape), _GREY)
    else:
        few = torch.rand(size, shape[0], _BLOTCHES, _BLOTCHES, generator=generator)
        pixels = F.interpolate(few, shape[1:], mode="bilinear", align_corners=True)
    return matching.scale.apply(pixels.to(device))


@dataclass(eq=False)
class _Legs:
    """The way from one place where it settles to the next.

    The least squares of other weights lie elsewhere, but a solution solves them all: a
    few steps under other weights lead out of a place that is none.

    Attributes:
        equations: What is solved.
        held: Per unknown which entries must not move.
        steps: Linearisations from one place.
        most: Of them in all; None: any number.
        effort: What may be spent in all.
        runs: Where it settled, in order.
        spent: Products so far.
        kinked: The gradient is not smooth, so shaking will not help.
    """

    equations: Equations
    held: Sequence[Tensor | None]
    steps: int
    most: int | None
    effort: Effort
    runs: list[Descent] = field(default_factory=list)
    spent: int = 0
    kinked: bool = False
    _shaken: int = 0

    @property
    def steps_done(self) -> int:
        """Linearisations so far."""
        return sum(r.iterations for r in self.runs) + self._shaken

    def settle(self, place: Sequence[Tensor]) -> list[Tensor]:
        """Solve from ``place``."""
        found = self._walk(self.equations, place, self.equations.goal, self.steps)
        inputs, *masks = found.best
        before = self.runs[-1] if self.runs else found
        later = [(self.steps_done + n, loss) for n, loss in found.curve]
        run = replace(
            found,
            best=[inputs, *(m.clamp(0, 1) for m in masks)],
            iterations=self._shaken + found.iterations,
            loss_start=before.loss_start,
            curve=[*(before.curve if self.runs else ()), *later],
            pictures=before.pictures,
        )
        self.runs.append(run)
        self._shaken = 0
        return found.best

    def shake(
        self, place: Sequence[Tensor], generator: torch.Generator
    ) -> list[Tensor]:
        """Leave ``place``."""
        shaken = self.equations.shaken(generator)
        found = self._walk(shaken, place, 0.0, min(_SHAKEN, self.steps))
        self._shaken = found.iterations
        if found.end == "interrupted":
            self.runs[-1] = replace(self.runs[-1], end="interrupted")
        return found.best

    @property
    def over(self) -> bool:
        """True once it is solved, interrupted, or nothing is left to spend."""
        if self.kinked or self.runs[-1].end in ("goal", "interrupted", "numerical"):
            return True
        if self.most is not None and self.steps_done >= self.most:
            return True
        return self.spent >= self.effort.work or not self.effort.in_time()

    def _walk(
        self, equations: Equations, place: Sequence[Tensor], goal: float, steps: int
    ) -> Walked:
        if self.most is not None:
            steps = max(1, min(steps, self.most - self.steps_done))
        left = replace(self.effort, steps=steps, work=self.effort.work - self.spent)
        found = least_squares(equations, place, self.held, goal=goal, effort=left)
        self.spent += found.products
        self.kinked = self.kinked or found.kinked
        return found
