"""``idlg``: improved DLG, with the label read off the gradient first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.attacks._labels import infer_labels
from privaudit.attacks._matching import Matching
from privaudit.attacks._minimise import Schedule
from privaudit.attacks._scene import Scene
from privaudit.attacks._search import (
    Plan,
    bare_scene,
    loss_at,
    search,
    with_read_labels,
)
from privaudit.attacks.base import Attack
from privaudit.attacks.dlg import QUASI_NEWTON
from privaudit.distances import SquaredL2
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.config import Budget


class Idlg(Attack):
    """As ``dlg``, with labels read off the classifier's gradient before the search.

    Labels that the attacker was told are used only where none can be read off, and
    the result says so.

    Source: Zhao 2020; differs in reading labels of batches too (Wainakh 2021).
    """

    name: ClassVar[str] = "idlg"
    title: ClassVar[str] = "Improved DLG (iDLG)"
    source: ClassVar[str] = "Zhao 2020"
    required: ClassVar[bool] = False

    restarts: int = Field(default=8, ge=1)
    """Starts that are tried until one reaches the goal, unless the budget says."""
    schedule: Schedule = QUASI_NEWTON

    @classmethod
    def tiny(cls) -> Idlg:
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
        scene, note = _read(bare_scene(target, observation, generator))
        matching = Matching(
            target, observation, scene.labels, SquaredL2(), (), sign=False, boxed=False
        )
        found = search(
            matching,
            Plan(list, lambda _: None, restarts=self.restarts),
            schedule=self.schedule,
            budget=budget,
            generator=generator,
        )
        if note is not None:
            return replace(found, notes=(*found.notes, note))
        return replace(found, labels=scene.labels)

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        return loss_at(target, observation, batch, tape, SquaredL2())


def _read(scene: Scene) -> tuple[Scene, str | None]:
    """The scene with labels read off, or as it is, with the reason."""
    guess = infer_labels(scene)
    if guess.labels is None and scene.labels is not None:
        return scene, f"{guess.reason}; those that were given are used"
    return with_read_labels(scene), None
