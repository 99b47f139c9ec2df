"""Many short searches from different starts, and the mean of what they find."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.attacks import _feature_loss
from privaudit.attacks._descend import Course
from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._feature_search import (
    FeaturePlan,
    by_descent,
    search_features,
)
from privaudit.attacks._waves import Waves, shape_of_waves
from privaudit.attacks.rmle import scale_of
from privaudit.config import Budget

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction


class Ensemble(FeatureAttack):
    """Images as sums of waves, searched from several starts and averaged.

    ``argmin_z d(f_c(x(z)), h*) + λ_TV·TV(x) + λ_patch·R_patch(x)`` for waves z whose
    lengths follow the spectrum of photographs, so that one step of Adam changes an
    image as photographs differ. Where features leave the image open each search makes
    up its own details; the mean keeps what they agree on.
    Source: beyond the papers; waves by Olah 2017, the mean as the estimate of least
    squared error.
    """

    name: ClassVar[str] = "ensemble"
    title: ClassVar[str] = "Mean of searches from several starts"
    source: ClassVar[str] = "Olah 2017"

    learning_rate: float = Field(default=0.8, ge=0)
    """Of Adam, in units of all waves; falls over the second half."""
    iterations: int = Field(default=1000, ge=1)
    """Of each search, at most."""
    restarts: int = Field(default=8, ge=1)
    """Searches of each image. With a limit in seconds one is made first, then as many
    as there is time for; the attack counts as stopped where these are fewer."""
    start: float = Field(default=1.0, ge=0)
    """How large the random waves are that a search starts from; 1: as a photograph's.
    A search that is made alone starts from grey."""
    tv_weight: float = Field(default=0.33, ge=0)
    """λ_TV at the start; times pixels per value that is sent, where that is above 1."""
    tv_weight_end: float = Field(default=0.033, ge=0)
    """λ_TV at the end, weighed as at the start."""
    patch_weight: float = Field(default=0.001, ge=0)
    """λ_patch; for tokens on a grid only."""
    cool: float = Field(default=0.5, ge=0, le=1)
    """Share of the run, at its end, over which steps shrink to nothing."""
    distance: str | None = "mean_squared_error"
    """Of features, by name; None: cosine for tokens, else mean squared error."""
    together: int = Field(default=4, ge=1)
    """Images in one loop, with all their searches; the result is the same."""

    @classmethod
    def tiny(cls) -> Ensemble:
        """Two short searches."""
        return cls(iterations=60, restarts=2)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return search_features(
            target, observation, plan=self._plan(target, observation), budget=budget,
            generator=generator,
        )  # fmt: skip

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return _feature_loss.loss_at(target, observation, images, self.distance)

    def _plan(
        self, target: FeatureTarget, observation: FeatureObservation
    ) -> FeaturePlan:
        features, shape = observation.features, observation.image_shape
        grey = scale_of(target).invert(features.new_zeros(1, *shape))

        def start(part: slice, restarts: int, noise: torch.Generator) -> Waves:
            images = len(range(*part.indices(len(observation))))
            waves = torch.zeros(restarts, *shape_of_waves(*shape))
            if restarts > 1:
                waves = self.start * torch.randn(waves.shape, generator=noise)
            rows = waves.repeat_interleave(images, 0).to(features)
            return Waves(grey.expand(len(rows), -1, -1, -1), rows)

        return by_descent(
            self._course(), start, distance=self.distance, restarts=self.restarts,
            together=self.together, average=True,
        )  # fmt: skip

    def _course(self) -> Course:
        return Course(
            learning_rate=self.learning_rate,
            iterations=self.iterations,
            smooth=self.tv_weight,
            smooth_end=self.tv_weight_end,
            seams=self.patch_weight,
            give_up=self.iterations,
            cool=self.cool,
        )
