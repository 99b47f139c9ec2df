"""``dropout_inversion`` (DIA): the image and every dropout mask, found together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field

from privaudit.attacks._mask_search import Initialisation, MaskSearch
from privaudit.attacks._minimise import Schedule
from privaudit.attacks._refine import Refinement
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
from privaudit.attacks._search_many import Problem, search_together
from privaudit.attacks.april import FAINT, NO_POSITION, led_by_position
from privaudit.attacks.base import Attack
from privaudit.distances import Cosine, Distance
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.config import Budget


class DropoutInversion(Attack):
    """Optimises the dropout masks Ψ beside the image, fuzzy in [0, 1].

    The image gets the sign of its gradient, the masks the raw one. Without dropout in
    the model it is the base attack itself.

    Source: Scheliga 2023, algorithm 1.
    """

    name: ClassVar[str] = "dropout_inversion"
    title: ClassVar[str] = "Dropout inversion (DIA)"
    source: ClassVar[str] = "Scheliga 2023"

    base: Literal["inverting_gradients", "april"] = "inverting_gradients"
    """The attack that is extended by masks: without dropout it is this one."""
    position_weight: float = Field(default=1e-4, ge=0)
    """With ``april``: λ of the position embedding's part of the distance."""
    initialisation: Initialisation = "bernoulli"
    """``bernoulli``: keep with 1 - p · ``normal_keep``: N(1 - p, 1/√n) ·
    ``normal_half``: N(.5, .25), for an unknown p, without Ω · ``analytical``: read
    off the gradient where it shows there, else bernoulli."""
    hold_certain: bool = True
    """With ``analytical``: entries that the gradient shows beyond doubt stay fixed.
    False starts there and lets them move, as in the paper."""
    mask_weight: float = Field(default=1e-4, ge=0)
    """λ_mask of Ω(Ψ) = Σ_i |p_i - (1 - ‖ψ_i‖/n_i)|, the rate that each mask has."""
    prior_weight: float | None = None
    """λ of the total variation; None: 1e-2 for convolutional networks, else 1e-5; with
    ``april`` its own 1e-7."""
    schedule: Schedule = Schedule()
    refine: int = Field(default=0, ge=0)
    """Gauss-Newton steps from where the search ends, on image and masks together, for
    models without kinks, labels known or read off, and no noise. Each may take as long
    as some hundred iterations; of bounded seconds they get a third."""

    @classmethod
    def tiny(cls) -> DropoutInversion:
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
        if problem is None:
            return Reconstruction(None, "skipped", NO_POSITION)
        return search(
            problem.matching,
            problem.plan,
            schedule=self.schedule,
            budget=budget,
            generator=generator,
            refinement=Refinement(self.refine),
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
        known = [p for p in problems if p is not None]
        if len(known) < len(problems):
            return None
        return search_together(
            known, schedule=self.schedule, budget=budget, generators=generators,
            refinement=Refinement(self.refine),
        )  # fmt: skip

    def _problem(
        self, target: Target, observation: Observation, generator: torch.Generator
    ) -> Problem | None:
        """What is searched; None where the base attack does not apply."""
        scene = scene_of(target, observation, generator)
        distance = self._distance(scene)
        if distance is None:
            return None
        prior_weight = self.prior_weight
        if prior_weight is None and self.base == "april":
            prior_weight = FAINT
        matching = matching_of(scene, prior_weight, distance)
        search_for = MaskSearch(
            scene, self.initialisation, hold_certain=self.hold_certain
        )
        regularised = self.mask_weight > 0 and self.initialisation != "normal_half"
        plan = Plan(
            masks=lambda: search_for.starts(generator),
            tape_of=search_for.tape_of,
            penalty=search_for.rates(self.mask_weight) if regularised else None,
            held=search_for.held,
            classes=classes_of(scene),
        )
        return Problem(matching, plan)

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """See :class:`~privaudit.attacks.base.Attack`."""
        scene = bare_scene(target, observation, torch.Generator())
        distance = self._distance(scene)
        if distance is None:
            return None
        return loss_at(target, observation, batch, tape, distance)

    def _distance(self, scene: Scene) -> Distance | None:
        """The base attack's; None where the model lacks what it needs."""
        if self.base == "april":
            return led_by_position(scene, self.position_weight)
        return Cosine()
