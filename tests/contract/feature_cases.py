"""The tiny cut models that contract tests of attacks on features run on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import FeatureAttack
from privaudit.config import Budget
from privaudit.exposure import Cut, FeatureExposure
from privaudit.types import (
    Batch,
    FeatureLayout,
    FeatureObservation,
    FeatureTarget,
    Reconstruction,
)
from tests.models.vit import small_vit

SHAPE = (3, 16, 16)
BUDGET = Budget(seconds=60, iterations=100, restarts=1)


def small_cnn() -> nn.Module:
    """Two convolutions with batch norm, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.LeakyReLU(0.2),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(24 * 64, 10),
        ).eval()  # fmt: skip


def photographs(count: int) -> Tensor:
    """(count, C, H, W) in [0, 1]."""
    return shipped_images(count, SHAPE)


@dataclass(frozen=True, eq=False)
class FeatureCase:
    """What a device sent for some images, from both sides."""

    target: FeatureTarget
    batch: Batch
    observation: FeatureObservation = field(init=False)

    def __post_init__(self) -> None:
        sent = self.target.exposure.observe(self.target.model, self.batch)
        object.__setattr__(self, "observation", sent)

    def attack(
        self, attack: FeatureAttack, *, seed: int = 0, budget: Budget = BUDGET
    ) -> list[Reconstruction]:
        """Run it on all images."""
        return self.attack_some(attack, slice(None), seed=seed, budget=budget)

    def attack_some(
        self,
        attack: FeatureAttack,
        rows: slice,
        *,
        seed: int = 0,
        budget: Budget = BUDGET,
    ) -> list[Reconstruction]:
        """Run it on some of the images, with nothing remembered."""
        part = FeatureObservation(self.observation.features[rows], SHAPE)
        fresh = FeatureTarget(
            self.target.model, self.target.exposure, self.target.public
        )
        return attack.run(
            fresh, part, budget=budget, generator=torch.Generator().manual_seed(seed)
        )

    @property
    def images(self) -> Tensor:
        """The truth."""
        return self.batch.images


def feature_case(kind: str, count: int = 2) -> FeatureCase:
    """``tokens``: a ViT cut behind its first block; ``nchw``: a CNN; ``vector``."""
    normal = Normalisation((0.5,), (0.25,))
    model: nn.Module = small_cnn()
    cut, layout = Cut("4"), FeatureLayout("nchw", 0, (8, 8))
    if kind == "tokens":
        model = small_vit().eval()
        cut, layout = Cut("layers.0"), FeatureLayout("tokens", 1, (4, 4))
    elif kind == "vector":
        cut, layout = Cut("6"), FeatureLayout("vector")
    exposure = FeatureExposure(normal, cut, layout)
    public = photographs(40)[count:]
    return FeatureCase(
        FeatureTarget(model, exposure, public), Batch(photographs(count), None)
    )
