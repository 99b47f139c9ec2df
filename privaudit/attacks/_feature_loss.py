"""What a search through features minimises: one loss an image, and its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from privaudit._plugin import by_name
from privaudit.distances import (
    FEATURE_DISTANCES,
    FeatureDistance,
    MeanSquaredError,
    TokenCosine,
)
from privaudit.errors import AttackError
from privaudit.priors import OpponentTotalVariation, PatchBoundary, PixelTotalVariation
from privaudit.types import FeatureLayout, FeatureObservation, FeatureTarget

PRIOR_PER_NOISE = 1.0
"""How many times more smoothness counts where all of the features is noise. Source:
measured; 5 was right for a total variation that does not see colours apart."""


class Parts(NamedTuple):
    """The loss of some images, each part of shape (rows,), weights not yet applied.

    Attributes:
        matching: Distance to what the device sent.
        smooth: Total variation, times :func:`share_of_prior`.
        seams: Jumps where patches meet; zero where there are none.
    """

    matching: Tensor
    smooth: Tensor
    seams: Tensor


@dataclass(frozen=True, eq=False)
class FeatureLoss:
    """The objective for some rows: each row is one image in one of its restarts.

    Attributes:
        target: Model and cut.
        observed: (rows, …), what each row is to match.
        distance: How features are compared.
        boundary: Where patches meet; None: there are no patches.
        opponent: Smooth brightness and colours apart, not red, green and blue.
    """

    target: FeatureTarget
    observed: Tensor
    distance: FeatureDistance
    boundary: PatchBoundary | None = None
    opponent: bool = True

    def matching(self, images: Tensor) -> Tensor:
        """The distance alone, (rows,), for images of shape (rows, C, H, W)."""
        guess = self.target.exposure.predict(self.target.model, images).to(
            self.observed
        )
        layout = self.target.exposure.layout
        guess, observed = self.target.compared(guess, self.observed)
        apart = self.distance.measure(guess, observed, layout)
        share = self.target.noise_share
        if not share:
            return apart
        return (apart - self.distance.floor(observed, share, layout)).clamp_min(0)

    def parts(self, images: Tensor) -> Parts:
        """All parts for images of shape (rows, C, H, W)."""
        prior = OpponentTotalVariation() if self.opponent else PixelTotalVariation()
        smooth = prior.penalty(images)
        smooth = smooth * share_of_prior(images, self.observed)
        smooth = smooth * (1 + PRIOR_PER_NOISE * self.target.noise_share)
        seams = torch.zeros_like(smooth)
        if self.boundary is not None:
            seams = self.boundary.penalty(images)
        return Parts(self.matching(images), smooth, seams)


def share_of_prior(images: Tensor, observed: Tensor) -> float:
    """How much more a prior must say where pixels outnumber what is sent.

    Distances and total variation are means. A posterior has sums in their place: its
    prior weighs pixels / features as much. It is 1 where features outnumber pixels.
    Source: measured (docs/compute.md, "Three attacks at three depths").
    """
    return max(1.0, images[0].numel() / observed[0].numel())


def distance_for(layout: FeatureLayout, name: str | None) -> FeatureDistance:
    """The distance called ``name``; None: cosine for tokens, else squared error.

    Raises:
        ConfigError: No such distance.
    """
    if name is not None:
        return by_name(FEATURE_DISTANCES, name)
    return TokenCosine() if layout.kind == "tokens" else MeanSquaredError()


def boundary_for(
    layout: FeatureLayout, image_shape: tuple[int, int, int]
) -> tuple[PatchBoundary | None, str]:
    """The prior on patch boundaries, and a note where it does not apply to tokens."""
    if layout.kind != "tokens":
        return None, ""
    _, height, width = image_shape
    if layout.grid is None:
        return None, "no patch grid is known: patch boundaries were not smoothed"
    rows, columns = layout.grid
    if height % rows or width % columns:
        return None, (
            f"{rows}×{columns} patches do not divide {height}×{width} pixels: patch "
            "boundaries were not smoothed"
        )
    return PatchBoundary(patch=(height // rows, width // columns)), ""


def loss_at(
    target: FeatureTarget,
    observation: FeatureObservation,
    images: Tensor,
    distance: str | None = None,
) -> list[float]:
    """Matching loss of each image of (batch, C, H, W) in [0, 1]."""
    measured = distance_for(target.exposure.layout, distance)
    loss = FeatureLoss(target, observation.features, measured)
    with torch.no_grad():
        found: list[float] = loss.matching(images).tolist()
    return found


def require_features(observation: FeatureObservation) -> None:
    """Refuse features that no search can match.

    Raises:
        AttackError: They hold NaN or infinite values, or are zero for every image.
    """
    features = observation.features
    bad = int((~features.isfinite()).sum())
    if bad:
        raise AttackError(
            "observation.features",
            expected="finite features",
            got=f"{bad} of {features.numel()} values NaN or infinite",
            hint="Look at the layer in front of the cut, or how they were recorded.",
        )
    if not bool(features.any()):
        raise AttackError(
            "observation.features",
            expected="features that are not zero",
            got="zero everywhere",
            hint="There is nothing to match: cut the model at another place.",
        )


@contextmanager
def folded_products(model: nn.Module) -> Iterator[None]:
    """Frozen weight matrices as if they were trained: torch is twice as fast with them.

    It multiplies a transposed batch, as attention makes it, by a matrix that needs no
    gradient one token at a time. No gradient of a weight is formed here or there.
    """
    frozen = [
        p for p in model.parameters()
        if p.dim() == 2 and p.is_floating_point()
        and not p.requires_grad and not p.is_inference()
    ]  # fmt: skip
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
