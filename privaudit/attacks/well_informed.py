"""``well_informed`` (WIIG): IG with the true masks given. A diagnostic upper bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.attacks._minimise import Schedule
from privaudit.attacks._search import (
    Plan,
    classes_of,
    loss_at,
    matching_of,
    scene_of,
    search,
)
from privaudit.attacks.base import Attack
from privaudit.errors import AttackError
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.config import Budget


class WellInformed(Attack):
    """IG that is given the client's dropout masks, which no real attacker has.

    Shows what dropout alone takes from gradient matching; never decides.

    Source: Scheliga 2023, section 3.2.
    """

    name: ClassVar[str] = "well_informed"
    title: ClassVar[str] = "Well-informed IG (diagnostic)"
    source: ClassVar[str] = "Scheliga 2023"
    diagnostic: ClassVar[bool] = True
    required: ClassVar[bool] = False

    prior_weight: float | None = None
    """λ of the total variation; None: 1e-2 for convolutional networks, else 1e-5."""
    schedule: Schedule = Schedule()

    @classmethod
    def tiny(cls) -> WellInformed:
        """A hundred iterations."""
        return cls(schedule=Schedule(iterations=100))

    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> Reconstruction:
        """See :class:`~privaudit.attacks.base.Attack`."""
        masks = target.knowledge.masks
        if masks is None:
            raise AttackError(
                "knowledge.masks",
                expected="the client's masks",
                got="none",
                hint="This diagnostic runs inside an audit, where they are recorded.",
            )
        scene = scene_of(target, observation, generator)
        matching = matching_of(scene, self.prior_weight)
        plan = Plan(list, lambda _: masks, classes=classes_of(scene))
        return search(
            matching, plan, schedule=self.schedule, budget=budget, generator=generator
        )

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        return loss_at(target, observation, batch, tape)
