"""``gradinversion``: gradient matching led by batch norms and several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.attacks._matching import Matching, Weighted
from privaudit.attacks._minimise import Schedule
from privaudit.attacks._norms import running_statistics
from privaudit.attacks._scene import Scene
from privaudit.attacks._search import (
    Plan,
    bare_scene,
    loss_at,
    require_labels,
    search,
    with_read_labels,
)
from privaudit.attacks.base import Attack
from privaudit.distances import LayerwiseL2
from privaudit.priors import (
    BatchNormStatistics,
    GroupConsistency,
    ImageL2,
    TotalVariation,
)
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.config import Budget


class GradInversion(Attack):
    """Matches layer by layer, from several seeds that look for the same image.

    Labels as known, else read off the gradient; they are never optimised. Images that
    share a class may change places between seeds, which blurs what they agree on.

    Source: Yin 2021; differs in the schedule (steps shrink on a plateau), in leaving
    out pixel noise and registration, and in relative terms (see the distance and the
    priors).
    """

    name: ClassVar[str] = "gradinversion"
    title: ClassVar[str] = "See through gradients (GradInversion)"
    source: ClassVar[str] = "Yin 2021"
    required: ClassVar[bool] = False

    total_variation_weight: float = Field(default=1e-4, ge=0)
    """λ of the total variation."""
    l2_weight: float = Field(default=1e-6, ge=0)
    """λ of the pixels' distance from the mean of all images."""
    batch_norm_weight: float = Field(default=1e-2, ge=0)
    """λ of the batch norms' statistics, where the model has batch norms."""
    group_weight: float = Field(default=1e-2, ge=0)
    """λ of the seeds' distance from their mean."""
    seeds: int = Field(default=2, ge=1)
    """Starts that are searched together; the best is returned."""
    schedule: Schedule = Schedule()

    @classmethod
    def tiny(cls) -> GradInversion:
        """Thirty iterations of two seeds."""
        return cls(schedule=Schedule(iterations=30))

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
        if scene.labels is None and target.exposure.is_classification:
            scene = with_read_labels(scene)
        matching = Matching(
            target,
            observation,
            require_labels(scene.labels),
            LayerwiseL2(),
            self._priors(),
            sign=False,
        )
        found = search(
            matching,
            Plan(list, lambda _: None, seeds=self.seeds),
            schedule=self.schedule,
            budget=budget,
            generator=generator,
        )
        read = scene.labels if target.knowledge.labels is None else None
        return replace(found, labels=read, notes=(*found.notes, *self._notes(scene)))

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        return loss_at(target, observation, batch, tape, LayerwiseL2())

    def _priors(self) -> list[Weighted]:
        terms = [
            Weighted(self.total_variation_weight, TotalVariation()),
            Weighted(self.l2_weight, ImageL2()),
            Weighted(self.batch_norm_weight, BatchNormStatistics()),
            Weighted(self.group_weight, GroupConsistency(seeds=self.seeds)),
        ]
        return [t for t in terms if t.weight > 0]

    def _notes(self, scene: Scene) -> Sequence[str]:
        """What the attack had to do without."""
        notes = []
        if self.batch_norm_weight and not running_statistics(scene.target.model):
            notes.append("no batch norm with running statistics to lead the search")
        labels = scene.labels
        if labels is not None and labels.dim() == 1:
            shared = len(labels) - len(set(labels.tolist()))
            if shared and self.seeds > 1:
                notes.append(f"{shared + 1} or more images share a class: seeds may "
                             "hold them in another order")  # fmt: skip
        return notes
