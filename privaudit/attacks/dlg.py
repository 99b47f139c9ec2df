"""``dlg``: deep leakage from gradients, where gradient matching began."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.attacks._matching import Matching
from privaudit.attacks._minimise import Schedule
from privaudit.attacks._scene import Scene
from privaudit.attacks._search import Plan, bare_scene, classes_of, loss_at, search
from privaudit.attacks.base import Attack
from privaudit.distances import SquaredL2
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.config import Budget

QUASI_NEWTON = Schedule(
    optimiser="lbfgs", learning_rate=1.0, iterations=300, goal=5e-9, give_up=20
)
"""L-BFGS as Zhu 2019 use it. The goal is the square of what counts as exact."""


class Dlg(Attack):
    """Matches the gradient in squared L2 by L-BFGS; image and label both unknown.

    The label is a vector of probabilities, whatever the attacker was told. No prior,
    no box. L-BFGS gets stuck or diverges from many starts, so several are tried.

    Source: Zhu 2019; differs in the label's start, where all classes are alike.
    """

    name: ClassVar[str] = "dlg"
    title: ClassVar[str] = "Deep leakage from gradients (DLG)"
    source: ClassVar[str] = "Zhu 2019"
    required: ClassVar[bool] = False

    restarts: int = Field(default=8, ge=1)
    """Starts that are tried until one reaches the goal, unless the budget says."""
    schedule: Schedule = QUASI_NEWTON

    @classmethod
    def tiny(cls) -> Dlg:
        """Three iterations of twenty evaluations."""
        return cls(
            restarts=1, schedule=QUASI_NEWTON.model_copy(update={"iterations": 3})
        )

    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> Reconstruction:
        """See :class:`~privaudit.attacks.base.Attack`."""
        scene = bare_scene(target, observation, generator)
        reason = no_probabilities(scene)
        if reason is not None:
            return Reconstruction(None, "skipped", reason)
        matching = Matching(
            target, observation, None, SquaredL2(), (), sign=False, boxed=False
        )
        plan = Plan(
            list, lambda _: None, classes=classes_of(scene), restarts=self.restarts
        )
        return search(
            matching, plan, schedule=self.schedule, budget=budget, generator=generator
        )

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        return loss_at(target, observation, batch, tape, SquaredL2())


def no_probabilities(scene: Scene) -> str | None:
    """Why labels cannot be searched as one vector of probabilities per image."""
    logits = scene.structure.logits
    if logits is None:
        return "the loss is the user's own: there are no class probabilities to search"
    if logits.dim() != 2:
        return f"logits of shape {tuple(logits.shape)}: not one class per image"
    return None
