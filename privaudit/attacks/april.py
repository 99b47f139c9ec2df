"""``april``: gradient matching of transformers, led by their position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.attacks._minimise import Schedule
from privaudit.attacks._position import learned_position
from privaudit.attacks._scene import Scene
from privaudit.attacks._search import (
    Plan,
    bare_scene,
    classes_of,
    loss_at,
    matching_of,
    scene_of,
    search,
)
from privaudit.attacks.base import Attack
from privaudit.distances import Distance, SquaredL2, SquaredL2WithPosition
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.config import Budget

FAINT = 1e-7
"""λ of the total variation. Scheliga 2023's 1e-5 stands beside an unscaled distance, of
which the one here is about a hundredth to a thousandth."""
DEEP = Schedule(goal=1e-8)
"""As Geiping 2020, to the square of what counts as exact."""
NO_POSITION = (
    "no shared position embedding has the gradient of the patch tokens: there is "
    "nothing to lead the search"
)


class April(Attack):
    """Matches in squared L2, and the position embedding's gradient in direction too.

    The iterative form; where it can be solved, ``closed_form`` solves it. Optimiser
    and steps as ``inverting_gradients``. Skipped where the model has no
    learned position embedding behind its patches.

    Source: Lu 2021; details as in Scheliga 2023.
    """

    name: ClassVar[str] = "april"
    title: ClassVar[str] = "Attention privacy leakage (APRIL)"
    source: ClassVar[str] = "Lu 2021"
    required: ClassVar[bool] = False

    position_weight: float = Field(default=1e-4, ge=0)
    """λ of 1 - cosine of the position embedding's gradients. 0 leaves the squared L2
    distance alone, which needs no position embedding."""
    prior_weight: float = Field(default=FAINT, ge=0)
    """λ of the total variation."""
    schedule: Schedule = DEEP

    @classmethod
    def tiny(cls) -> April:
        """A hundred iterations, on any model."""
        return cls(position_weight=0, schedule=Schedule(iterations=100))

    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> Reconstruction:
        """See :class:`~privaudit.attacks.base.Attack`."""
        scene = scene_of(target, observation, generator)
        distance = led_by_position(scene, self.position_weight)
        if distance is None:
            return Reconstruction(None, "skipped", NO_POSITION)
        matching = matching_of(scene, self.prior_weight, distance)
        plan = Plan(list, lambda _: None, classes=classes_of(scene))
        return search(
            matching, plan, schedule=self.schedule, budget=budget, generator=generator
        )

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        scene = bare_scene(target, observation, torch.Generator())
        distance = led_by_position(scene, self.position_weight)
        if distance is None:
            return None
        return loss_at(target, observation, batch, tape, distance)


def led_by_position(scene: Scene, weight: float) -> Distance | None:
    """The distance of APRIL; None where it needs a position embedding and has none."""
    if weight == 0:
        return SquaredL2()
    name = learned_position(scene)
    if name is None or name not in scene.observation.gradients:
        return None
    return SquaredL2WithPosition(position=name, weight=weight)
