"""``well_informed`` (WIIG): IG with the true masks given. A diagnostic upper bound."""

from __future__ import annotations

from collections.abc import Sequence
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
from privaudit.attacks._search_many import Problem, search_together
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
        problem = self._problem(target, observation, generator)
        return search(
            problem.matching,
            problem.plan,
            schedule=self.schedule,
            budget=budget,
            generator=generator,
        )

    def run_many(
        self,
        targets: Sequence[Target],
        observations: Sequence[Observation],
        *,
        budget: Budget,
        generators: Sequence[torch.Generator],
    ) -> list[Reconstruction] | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        problems = [
            self._problem(*one)
            for one in zip(targets, observations, generators, strict=True)
        ]
        return search_together(
            problems, schedule=self.schedule, budget=budget, generators=generators
        )

    def _problem(
        self, target: Target, observation: Observation, generator: torch.Generator
    ) -> Problem:
        """What is searched."""
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
        return Problem(matching, Plan(list, lambda _: masks, classes=classes_of(scene)))

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        return loss_at(target, observation, batch, tape)
