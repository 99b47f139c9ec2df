"""Likelihood maximisation: an untrained network draws the image that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field, model_validator

from privaudit.attacks import _feature_loss
from privaudit.attacks._descend import Course
from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._feature_search import Starter, by_descent, search_features
from privaudit.attacks._polish import Polish, polished, share_for_polish
from privaudit.attacks._skip_network import (
    DrawnImages,
    Sizes,
    SkipNetworks,
    Weights,
    rows_of_noise,
)
from privaudit.config import Budget
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction

JITTER = ((0.5, 5.0), (0.75, 1.0), (0.875, 0.5))
"""(share of the run, standard deviation of the noise on the input until then)."""


class Lm(FeatureAttack):
    """The weights of an untrained encoder–decoder, so that what it draws fits.

    ``argmin_θ d(f_c(f_θ(ε)), h*) + λ_TV·TV + λ_patch·R_patch`` with fixed noise ε: a
    network for each image, and what it can draw is the only prior. Noise on ε keeps it
    from copying noise; it falls during the run and is gone at the end.
    Source: Singh 2021 (deep image prior: Ulyanov 2018); Lei 2025, eq. 14, table 9.
    """

    name: ClassVar[str] = "lm"
    title: ClassVar[str] = "Likelihood maximisation with a deep image prior"
    source: ClassVar[str] = "Singh 2021"

    learning_rate: float = Field(default=0.01, ge=0)
    """Of Adam."""
    iterations: int = Field(default=20_000, ge=1)
    """All of them are made, unless the budget ends first."""
    tv_weight: float = Field(default=0.05, ge=0)
    """λ_TV, on [0, 1]; times pixels per value that is sent, where that is above 1."""
    opponent: bool = True
    """Total variation of brightness and of colour apart; False: of red, green, blue."""
    patch_weight: float = Field(default=0.001, ge=0)
    """λ_patch; for tokens on a grid only."""
    channels: tuple[int, ...] = Field(default=(16, 32, 64, 128), min_length=1)
    """Of each level of the network, from the image inwards."""
    kernels: tuple[int, ...] = Field(default=(7, 7, 5, 5), min_length=1)
    """Sides of the kernels of each level."""
    skip: int = Field(default=4, ge=1)
    """Channels that go past each level."""
    inputs: int = Field(default=32, ge=1)
    """Channels of the fixed noise ε."""
    cool: float = Field(default=0.0, ge=0, le=1)
    """Share of the run, at its end, over which steps shrink to nothing."""
    distance: str | None = "mean_squared_error"
    """Of features, by name; None: cosine for tokens, else mean squared error."""
    restarts: int = Field(default=1, ge=1)
    """Searches of each image, each with a network and a noise of its own."""
    average: bool = False
    """Answer with the mean of the restarts, not with the one that fits best."""
    together: int = Field(default=16, ge=1)
    """Images in one loop; fewer need less memory and give the same result."""
    polish: int = Field(default=0, ge=0)
    """Iterations of free pixels afterwards; 0: none."""

    @model_validator(mode="after")
    def _can_be_built(self) -> Lm:
        even = any(k % 2 == 0 for k in self.kernels)
        if len(self.channels) != len(self.kernels) or even:
            raise ConfigError(
                "lm.kernels",
                expected=f"an odd side for each of {len(self.channels)} levels",
                got=str(list(self.kernels)),
                hint="Give as many kernels as channels, such as (7, 7, 5, 5).",
            )
        return self

    @classmethod
    def tiny(cls) -> Lm:
        """A few iterations of a small network."""
        return cls(iterations=30, channels=(8, 8), kernels=(3, 3), inputs=4)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        plan = by_descent(
            self._course(), self._starter(observation), distance=self.distance,
            restarts=self.restarts, together=self.together, opponent=self.opponent,
            average=self.average,
        )  # fmt: skip
        own, rest = share_for_polish(budget, self.polish)
        found = search_features(
            target, observation, plan=plan, budget=own, generator=generator
        )
        if not self.polish:
            return found
        how = Polish(
            steps=self.polish, distance=self.distance, together=self.together,
            opponent=self.opponent,
        )  # fmt: skip
        return polished(target, observation, found, how=how, budget=rest)

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return _feature_loss.loss_at(target, observation, images, self.distance)

    def _starter(self, observation: FeatureObservation) -> Starter:
        """Networks with random weights, and the noise that they are fed."""
        outputs, *size = observation.image_shape
        sizes = Sizes(self.inputs, self.channels, self.kernels, self.skip, outputs)
        sizes = sizes.fitting(*size)
        device = observation.features.device

        def start(part: slice, restarts: int, noise: torch.Generator) -> DrawnImages:
            images = len(range(*part.indices(len(observation))))
            weights = Weights(images, restarts, noise, device)
            networks = SkipNetworks.filled(sizes, weights)
            rows = torch.zeros(images * restarts, self.inputs, *size, device=device)
            fed = rows_of_noise(rows, restarts, noise)
            return DrawnImages(networks, fed, JITTER, noise, restarts)

        return start

    def _course(self) -> Course:
        return Course(
            learning_rate=self.learning_rate,
            iterations=self.iterations,
            smooth=self.tv_weight,
            smooth_end=self.tv_weight,
            seams=self.patch_weight,
            give_up=self.iterations,
            cool=self.cool,
        )
