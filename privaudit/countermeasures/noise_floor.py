"""How much of the features is noise: searches stop there, and lean on smoothness."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.countermeasures.base import Countermeasure, SeenFeatures

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.defenses import Detection


class NoiseFloor(Countermeasure):
    """Tells every attack which share of what was sent is noise: ``σ²/(1 + σ²)``.

    σ is relative to the root mean square of an image's features. No distance is
    counted below the one that the truth has, smoothness weighs more the more noise
    there is, and an inverse network learns from features as noisy.
    Source: Morozov 1966 (discrepancy principle).
    """

    name: ClassVar[str] = "noise_floor"
    title: ClassVar[str] = "Noise of features taken into account"
    source: ClassVar[str] = "Morozov 1966"
    against: ClassVar[frozenset[str]] = frozenset({"gaussian_noise", "laplace_noise"})
    exposures: ClassVar[frozenset[str]] = frozenset({"features"})
    rank: ClassVar[int] = 10

    def see_features(
        self, seen: SeenFeatures, found: Detection, generator: torch.Generator
    ) -> SeenFeatures:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        std = found.estimate.get("noise_std")
        if std is None:
            note = f"{self.name}: the size of the noise is not known; nothing was done"
            return replace(seen, notes=(*seen.notes, note))
        share = std**2 / (1 + std**2)
        target = replace(
            seen.target,
            noise_share=share,
            corruptions=(*seen.target.corruptions, _Noise(std)),
        )
        note = f"{self.name}: {share:.1%} of the features' mean square is noise"
        return replace(seen, target=target, notes=(*seen.notes, note))


@dataclass(frozen=True, eq=False)
class _Noise:
    """Features with normal noise of a share of each image's root mean square."""

    std: float

    def __call__(self, features: Tensor, generator: torch.Generator) -> Tensor:
        axes = tuple(range(1, features.dim()))
        size = features.square().mean(axes, keepdim=True).sqrt()
        drawn = torch.randn(features.shape, generator=generator).to(features)
        return features + self.std * size * drawn
