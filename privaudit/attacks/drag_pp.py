"""DRAG++: guided diffusion that starts from what an inverse network draws."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._guided_search import PRIOR, skipped
from privaudit.attacks._polish import SHARE
from privaudit.attacks.base import INTERRUPTED
from privaudit.attacks.drag import Drag
from privaudit.attacks.inverse_network import InverseNetwork
from privaudit.config import Budget

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction


class DragPp(FeatureAttack):
    """The image of an inverse network, noised to step s·T, then guided as in DRAG.

    A shorter way to what DRAG finds, where public images or a trained network are
    there; what it finds counts, but nothing is missing without it.
    Source: Lei 2025, section 3.3; s .3 there. With a weak prior a large s destroys the
    start.
    """

    name: ClassVar[str] = "drag_pp"
    title: ClassVar[str] = "Guided diffusion from an inverse network"
    source: ClassVar[str] = "Lei 2025"
    reads_priors: ClassVar[frozenset[str]] = frozenset(
        {PRIOR, *InverseNetwork.reads_priors}
    )

    portable_priors: ClassVar[frozenset[str]] = frozenset({PRIOR})
    required: ClassVar[bool] = False

    strength: float = Field(default=0.3, gt=0, le=1)
    """s: 0 keeps the start, 1 forgets it."""
    drag: Drag = Drag()
    """What follows the start."""
    inverse_network: InverseNetwork = InverseNetwork()
    """How the network is trained where none is handed over."""

    @classmethod
    def tiny(cls) -> DragPp:
        """A small network and a few steps."""
        network = InverseNetwork.tiny().model_copy(update={"iterations": 20})
        return cls(drag=Drag.tiny(), inverse_network=network)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        own, rest = budget, budget
        if budget.seconds is not None:
            first, second = budget.seconds * SHARE, budget.seconds * (1 - SHARE)
            own = budget.model_copy(update={"seconds": first})
            rest = budget.model_copy(update={"seconds": second})
        begun = self.inverse_network.run(
            target, observation, budget=own, generator=generator
        )
        if any(one.reason == INTERRUPTED for one in begun):
            return begun
        images = [one.images for one in begun if one.images is not None]
        if len(images) < len(begun):
            return skipped(observation, f"nothing to start from: {begun[0].reason}")
        drag = self.drag.model_copy(update={"strength": self.strength, "start": "best"})
        found = drag.guided(
            target, observation, torch.cat(images), budget=rest, generator=generator
        )
        return [_told(a, b) for a, b in zip(begun, found, strict=True)]

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return self.drag.loss_at(target, observation, images)


def _told(before: Reconstruction, after: Reconstruction) -> Reconstruction:
    """What followed a network, with what is known of it: cut short is not hidden."""
    after = replace(after, notes=(*after.notes, *before.notes))
    if before.state == "stopped" and after.state == "plateau":
        reason = f"the network that it starts from: {before.reason}"
        return replace(after, state="stopped", reason=reason)
    return after
