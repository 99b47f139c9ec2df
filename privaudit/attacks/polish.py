"""Polish: free pixels from the best images that the attacks before found."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.attacks import _feature_loss
from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._guided_search import skipped
from privaudit.attacks._polish import Polish as How
from privaudit.attacks._polish import polish_images
from privaudit.config import Budget

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction


class Polish(FeatureAttack):
    """Some hundred steps of free pixels from where the attacks before ended.

    A prior, learnt or not, draws images that it finds likely; what the features say
    beyond that is had by moving the pixels. It starts from the images, over all attacks
    before, whose features fit best.
    Source: measured (docs/compute.md); the steps as He 2019.
    """

    name: ClassVar[str] = "polish"
    title: ClassVar[str] = "Polish of the best images so far"
    source: ClassVar[str] = "He 2019"
    required: ClassVar[bool] = False

    steps: int = Field(default=400, ge=1)
    """Iterations."""
    learning_rate: float = Field(default=0.15, gt=0)
    """Of Adam, in units of normalised pixels; falls over the second half."""
    tv_weight: float = Field(default=0.3, ge=0)
    """λ_TV at the start."""
    tv_weight_end: float = Field(default=0.05, ge=0)
    """λ_TV at the end."""
    distance: str | None = "mean_squared_error"
    """Of features, by name; None: cosine for tokens, else mean squared error."""
    together: int = Field(default=16, ge=1)
    """Images in one loop."""

    @classmethod
    def tiny(cls) -> Polish:
        """A few iterations."""
        return cls(steps=40)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        best = target.memory.get("start")
        shape = (len(observation), *observation.image_shape)
        if not isinstance(best, torch.Tensor) or best.shape != shape:
            return skipped(observation, "no attack before gave images to polish")
        how = How(**self.model_dump())
        return polish_images(target, observation, best, how=how, budget=budget)

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return _feature_loss.loss_at(target, observation, images, self.distance)
