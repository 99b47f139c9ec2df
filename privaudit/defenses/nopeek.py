"""The model is trained so that distances of images do not show in what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field, PrivateAttr

from privaudit.defenses._distance_correlation import (
    cosine,
    distance_correlation,
    euclidean,
)
from privaudit.defenses._task_head import with_task_head
from privaudit.defenses._training import (
    Loop,
    Losses,
    as_given,
    device_of,
    endless,
    trained_weights,
    untrained,
)
from privaudit.defenses.base import FEATURES, GRADIENT, Defense, Fitted, TrainData
from privaudit.exposure.output import scalar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privaudit.exposure import FeatureExposure, GradientExposure
    from privaudit.types import FeatureLayout

_LEAST = 4
"""Images of a batch: fewer have a distance correlation near 1 whatever they send."""


class NoPeek(Defense):
    """Fine-tunes a copy with ``ρ_N·dCor(x, h) + task loss``; what is sent stays as is.

    dCor is the distance correlation of images, as the model takes them, and features
    over the batch, so it depends on the batch size.
    Source: Vepakomma 2020, as Lei 2025 use it (appendix D): ρ_N of 1, 3 and 5; SGD.
    Differs in momentum and clipped gradients, of which the paper says nothing, and in
    that batch statistics stay and dropout is off while it trains.
    """

    name: ClassVar[str] = "nopeek"
    title: ClassVar[str] = "NoPeek"
    source: ClassVar[str] = "Vepakomma 2020"
    exposures: ClassVar[frozenset[str]] = frozenset({FEATURES})
    trained: ClassVar[bool] = True
    does_not_protect: ClassVar[str] = (
        "What the features still determine: distances shrink, but an attack that "
        "matches features does not go by how large they are."
    )
    known_to_attacks: ClassVar[bool] = True

    weight: float = Field(default=5.0, gt=0)
    """ρ_N, of the distance correlation."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Of SGD."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Of SGD."""
    steps: int = Field(default=20_000, ge=1)
    """Batches that are learnt from."""
    informed: bool = False
    """True measures features by the cosine distance of tokens, as the attack does."""
    probe_steps: int = Field(default=1000, ge=1)
    """Of a new head alone, where the model has none for the task."""

    _fitted: bool = PrivateAttr(default=False)

    @classmethod
    def tiny(cls) -> NoPeek:
        """See :class:`~privaudit.defenses.Defense`."""
        return cls(steps=4, probe_steps=4)

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """As they are: the model itself was trained."""
        self.require_fitted()
        return sent

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
        twin, history = with_task_head(
            model, data, exposure,
            defense=self.name, steps=self.probe_steps, generator=generator,
        )  # fmt: skip
        optimiser = torch.optim.SGD(
            trained_weights(twin), lr=self.learning_rate, momentum=self.momentum
        )
        batches = endless(data, device_of(twin), least=_LEAST)
        losses = _Losses(self, twin, exposure, data)
        history |= Loop(self.name, self.steps, [optimiser]).run(batches, losses)
        fitted = self.model_copy()
        fitted._fitted = True
        return Fitted(as_given(twin, model), fitted, history)

    def require_fitted(self) -> None:
        """See :class:`~privaudit.defenses.Defense`."""
        if not self._fitted:
            raise untrained(self)


@dataclass(frozen=True, eq=False)
class _Losses:
    settings: NoPeek
    model: nn.Module
    exposure: FeatureExposure
    data: TrainData

    def __call__(self, images: Tensor, labels: Tensor) -> Losses:
        """Of one batch."""
        features = self.exposure.predict(self.model, images)
        out = self.exposure.finish(self.model, images, features)
        task = scalar(self.data.loss(out, labels), "train_data.loss")
        inputs = euclidean(self.exposure.normalisation.apply(images))
        shown = distance_correlation(inputs, self._distances(features))
        total = self.settings.weight * shown + task
        return {"total": total, "task": task, "distance correlation": shown}

    def _distances(self, features: Tensor) -> Tensor:
        if self.settings.informed:
            return cosine(features, self.exposure.layout)
        return euclidean(features)
