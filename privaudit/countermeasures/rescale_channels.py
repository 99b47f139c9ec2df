"""The scale of each channel is taken out of what is compared, image by image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.countermeasures._channels import across_places, reference
from privaudit.countermeasures.base import Countermeasure, SeenFeatures

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.defenses import Detection
    from privaudit.types import FeatureLayout, FeatureTarget


class RescaleChannels(Countermeasure):
    """Brings each channel of each image to its usual size, in guesses as in what came.

    Soft pruning ``h'_c = m_c·h_c`` has one factor for all tokens or positions: divided
    by its own root mean square a channel shows what it showed before, however small
    m_c. Lost is one number a channel. Comparisons then fit the best factor to each
    channel of the guess, ``⟨h_c, h*_c⟩ / ⟨h_c, h_c⟩``: one that points elsewhere counts
    for less. Where there is noise, it would be blown up: nothing is done.
    Source: design of this project.
    """

    name: ClassVar[str] = "rescale_channels"
    title: ClassVar[str] = "Pruned channels scaled back"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset({"disco"})
    exposures: ClassVar[frozenset[str]] = frozenset({"features"})
    rank: ClassVar[int] = 25

    def see_features(
        self, seen: SeenFeatures, found: Detection, generator: torch.Generator
    ) -> SeenFeatures:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        layout, exposure = seen.target.exposure.layout, seen.target.exposure
        reason = self._refusal(seen)
        if reason:
            return replace(seen, notes=(*seen.notes, f"{self.name}: {reason}"))
        own = _sizes(reference(seen), layout).square().mean(0, keepdim=True).sqrt()
        level, fit = _Level(own, layout), _Fit(layout)
        note = (
            f"{self.name}: each channel of an image was compared at its usual size; "
            "its own size was not"
        )
        target = replace(
            seen.target,
            exposure=replace(exposure, reads=(*exposure.reads, level)),
            comparisons=(*seen.target.comparisons, fit),
        )
        return SeenFeatures(
            target,
            replace(seen.observation, features=level(seen.observation.features)),
            (*seen.notes, note),
        )

    def _refusal(self, seen: SeenFeatures) -> str:
        """Why nothing is scaled; empty: it is."""
        features = seen.observation.features
        axes = across_places(features, seen.target.exposure.layout)
        if not axes or all(features.shape[a] == 1 for a in axes):
            return "a channel has one value only, nothing of it would be left"
        if seen.target.noise_share:
            return "what was pruned is noise by now: channels were left at their sizes"
        return ""


@dataclass(frozen=True, eq=False)
class _Level:
    """Features (batch, …) with each channel at the size ``usual``."""

    usual: Tensor
    layout: FeatureLayout

    def __call__(self, features: Tensor) -> Tensor:
        usual = self.usual.to(features)
        return features / _sizes(features, self.layout) * usual


@dataclass(frozen=True, eq=False)
class _Fit:
    """The comparison: each channel of the guess times what brings it nearest."""

    layout: FeatureLayout

    def __call__(self, guess: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        axes = across_places(guess, self.layout)
        own = guess.square().sum(axes, keepdim=True)
        inner = (guess * observed).sum(axes, keepdim=True)
        return guess * (inner / torch.where(own > 0, own, 1)), observed


def scaled_back(target: FeatureTarget) -> bool:
    """Whether channels are compared without their scale."""
    return any(isinstance(read, _Level) for read in target.exposure.reads)


def _sizes(features: Tensor, layout: FeatureLayout) -> Tensor:
    """Root mean square of each channel over the places that were sent, (batch, …).

    The square of a small number is lost in float32: each channel is measured in units
    of its largest value. A channel that is zero everywhere has size 1.
    """
    axes = across_places(features, layout)
    unit = features.detach().abs().amax(axes, keepdim=True)
    unit = torch.where(unit > 0, unit, 1)
    sent = torch.ones_like(features[..., :1]).bool()
    if layout.kind == "tokens":
        sent = features.detach().ne(0).any(-1, keepdim=True)
    count = sent.expand_as(features).sum(axes, keepdim=True).clamp_min(1)
    square = (features / unit).square().sum(axes, keepdim=True) / count
    found: Tensor = unit * torch.where(square > 0, square, 1).sqrt()
    return found
