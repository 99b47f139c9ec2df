"""Channels that tell most of the image are pruned, image by image."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field, PrivateAttr

from privaudit.defenses._disco_training import fit_disco, shares, spread
from privaudit.defenses._traces import ramp, silent_channels
from privaudit.defenses._training import untrained
from privaudit.defenses.base import (
    FEATURES,
    GRADIENT,
    Defense,
    Detection,
    FeatureEvidence,
    Fitted,
    TrainData,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privaudit.exposure import FeatureExposure, GradientExposure
    from privaudit.types import FeatureLayout


class Disco(Defense):
    """``h' = sigmoid((s − q_r(s)) / τ)·h``, s the scores that a pruner gives channels.

    One score vector an image, shared by all tokens or positions; pruned channels are
    small, never exactly zero. The pruner is a copy of the server part whose last layer
    puts out a score for each channel. An inverse network learns to draw the image from
    h'; the pruner learns against it (that gradient reversed) and for the task (times
    ρ_D); client and server learn the task.
    Source: Singh 2021, as Lei 2025 use it (eq. 18, appendix D): SGD; (ρ_D, r_p) of
    (.95, .1), (.75, .2) and (.95, .5). Differs in momentum, clipped gradients and an
    inverse network trained by AdamW, of which the paper says nothing, in errors of
    pixels squared and in units of a quarter of the range, and in that batch statistics
    stay and dropout is off while it trains.
    """

    name: ClassVar[str] = "disco"
    title: ClassVar[str] = "DISCO"
    source: ClassVar[str] = "Singh 2021"
    exposures: ClassVar[frozenset[str]] = frozenset({FEATURES})
    trained: ClassVar[bool] = True
    does_not_protect: ClassVar[str] = (
        "Channels that are kept, and which those are: pruned ones show by being small, "
        "so an attack can leave them out or scale them back."
    )

    utility_weight: float = Field(default=0.95, gt=0)
    """ρ_D, of the task's loss; the reversed error of the inverse network weighs 1."""
    ratio: float = Field(default=0.1, gt=0, lt=1)
    """r_p, share of the channels that are pruned."""
    temperature: float = Field(default=0.03, gt=0)
    """τ, in units of the scores: how soft pruning is."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Of SGD, for client, server and pruner."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Of SGD."""
    steps: int = Field(default=50_000, ge=1)
    """Batches that are learnt from."""
    inverse_width: int = Field(default=128, ge=8, multiple_of=8)
    """Channels inside the inverse network; 512 in the paper."""
    inverse_layers: int = Field(default=3, ge=1)
    """Of the inverse network; 4 in the paper."""
    inverse_learning_rate: float = Field(default=1e-3, gt=0)
    """Of AdamW, for the inverse network."""
    probe_steps: int = Field(default=1000, ge=1)
    """Of a new head alone, where the model has none for the task."""
    _pruner: torch.nn.Module | None = PrivateAttr(default=None)

    @classmethod
    def tiny(cls) -> Disco:
        """See :class:`~privaudit.defenses.Defense`."""
        return cls(steps=4, probe_steps=4, inverse_width=16, inverse_layers=1)

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """See :class:`~privaudit.defenses.Defense`."""
        pruner = self._pruner
        if pruner is None:
            raise untrained(self)
        with torch.no_grad():
            scores = pruner.to(sent.device)(sent)
        return sent * spread(shares(scores, self.ratio, self.temperature), sent, layout)

    def fit(
        self,
        model: nn.Module,
        data: TrainData,
        *,
        exposure: FeatureExposure | GradientExposure,
        generator: torch.Generator,
    ) -> Fitted:
        """See :class:`~privaudit.defenses.Defense`."""
        from privaudit.exposure import FeatureExposure

        if not isinstance(exposure, FeatureExposure):
            raise self.misplaced(GRADIENT)
        twin, pruner, history = fit_disco(
            self, model, data, exposure, generator=generator
        )
        return Fitted(twin, self.with_pruner(pruner), history)

    def with_pruner(self, pruner: nn.Module) -> Disco:
        """The same settings, with a pruner that scores channels."""
        fitted = self.model_copy()
        fitted._pruner = pruner
        return fitted

    def require_fitted(self) -> None:
        """See :class:`~privaudit.defenses.Defense`."""
        if self._pruner is None:
            raise untrained(self)

    @classmethod
    def detect_features(cls, seen: FeatureEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        silent, usual = silent_channels(seen)
        return Detection(
            defense=cls.name,
            confidence=ramp(silent - usual, 0.04),
            evidence=f"{silent:.0%} of the channels are nearly silent, {usual:.0%} in "
            "other images",
            estimate={"ratio": max(0.0, silent - usual)},
        )
