"""The network that says which channels DISCO prunes, and how it is trained."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privaudit.defenses._task_head import pooled, put_head, with_task_head
from privaudit.defenses._training import (
    History,
    Loop,
    Losses,
    as_given,
    device_of,
    endless,
    trained_weights,
)
from privaudit.exposure.output import scalar

if TYPE_CHECKING:
    from privaudit.defenses.base import TrainData
    from privaudit.defenses.disco import Disco
    from privaudit.exposure import FeatureExposure
    from privaudit.types import FeatureLayout

_PIXEL_SPREAD = 0.25
"""Unit of errors of pixels: a guess of mean grey costs about 1."""


def channel_axis(layout: FeatureLayout) -> int:
    """Where the channels are."""
    return 1 if layout.kind == "nchw" else -1


def shares(scores: Tensor, ratio: float, temperature: float) -> Tensor:
    """``sigmoid((score − q) / τ)``, q the image's ``ratio`` quantile: (batch, C).

    Example:
        >>> import torch
        >>> kept = shares(torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]]), 0.25, 0.1)
        >>> [round(v, 4) for v in kept[0].tolist()]
        [0.0, 0.5, 1.0, 1.0, 1.0]
    """
    scores = scores.float()
    at = scores.quantile(ratio, dim=1, keepdim=True)
    return torch.sigmoid((scores - at) / temperature)


def spread(kept: Tensor, features: Tensor, layout: FeatureLayout) -> Tensor:
    """(batch, C) in the shape that broadcasts over features."""
    shape = [len(kept), *(1 for _ in features.shape[1:])]
    shape[channel_axis(layout)] = kept.shape[1]
    return kept.reshape(shape).to(features.dtype)


class Pruner(nn.Module):
    """Features → one score a channel, (batch, C): a server with another last layer.

    Args:
        server: A copy of the whole model, of which only what is behind the cut counts.
        exposure: Where it is cut.
        image_shape: (channels, height, width) that the model takes.
    """

    def __init__(
        self,
        server: nn.Module,
        exposure: FeatureExposure,
        image_shape: tuple[int, int, int],
    ) -> None:
        super().__init__()
        self.server, self.exposure = server, exposure
        self.image_shape = image_shape

    def forward(self, features: Tensor) -> Tensor:
        """Scores of the channels of each image."""
        blank = features.new_zeros(len(features), *self.image_shape)
        return pooled(self.exposure.finish(self.server, blank, features))


@dataclass(eq=False)
class Game:
    """Who learns what in DISCO.

    The inverse network minimises the error of its images. The pruner gets that
    gradient reversed, and that of ρ_D times the task's loss. Client and server get the
    latter alone.

    Attributes:
        settings: Of the defense.
        model: The copy that is trained.
        pruner: Says which channels go.
        inverse: From defended features to images.
        exposure: Where the model is cut.
        data: Its loss is that of the task.
        reversal: 1; −1 lets the pruner help the inverse network.
    """

    settings: Disco
    model: nn.Module
    pruner: Pruner
    inverse: nn.Module
    exposure: FeatureExposure
    data: TrainData
    reversal: float = 1.0

    def run(self) -> History:
        """Train all of them for the steps of the settings."""
        own, rate = self.settings, self.settings.learning_rate
        optimisers: list[torch.optim.Optimizer] = [
            torch.optim.SGD(trained_weights(part), lr=rate, momentum=own.momentum)
            for part in (self.model, self.pruner)
        ]
        optimisers.append(
            torch.optim.AdamW(self.inverse.parameters(), lr=own.inverse_learning_rate)
        )
        batches = endless(self.data, device_of(self.model))
        return Loop(own.name, own.steps, optimisers).run(batches, self.losses)

    def losses(self, images: Tensor, labels: Tensor) -> Losses:
        """Of one batch."""
        features = self.exposure.predict(self.model, images)
        kept = self.kept(features.detach())
        out = self.exposure.finish(self.model, images, kept * features)
        task = scalar(self.data.loss(out, labels), "train_data.loss")
        # The value of kept, with its gradient turned round.
        against = (1 + self.reversal) * kept.detach() - self.reversal * kept
        drawn = self.inverse(against * features.detach())
        error = (drawn - images).square().mean() / _PIXEL_SPREAD**2
        total = error + self.settings.utility_weight * task
        return {"total": total, "task": task, "reconstruction": error}

    def kept(self, features: Tensor) -> Tensor:
        """What is left of each channel, in a shape that broadcasts over features."""
        own = self.settings
        kept = shares(self.pruner(features), own.ratio, own.temperature)
        return spread(kept, features, self.exposure.layout)


def game(
    settings: Disco,
    model: nn.Module,
    data: TrainData,
    exposure: FeatureExposure,
    *,
    generator: torch.Generator,
) -> tuple[Game, History]:
    """Everybody before the first step, and how a new head was trained.

    Args:
        settings: Of the defense.
        model: The user's; not changed.
        data: To learn from.
        exposure: Where the model is cut.
        generator: Draws the weights of new layers.
    """
    from privaudit.attacks import InverseNetwork
    from privaudit.attacks._inverse_training import fresh
    from privaudit.types import FeatureTarget

    twin, history = with_task_head(
        model, data, exposure,
        defense=settings.name, steps=settings.probe_steps, generator=generator,
    )  # fmt: skip
    images = next(endless(data, device_of(twin)))[0]
    with torch.no_grad():
        sent = exposure.predict(twin, images[:1])
    channels = sent.shape[channel_axis(exposure.layout)]
    server = copy.deepcopy(twin)
    put_head(server, exposure, images[:1], channels, generator=generator)
    size = InverseNetwork(width=settings.inverse_width, layers=settings.inverse_layers)
    inverse = fresh(FeatureTarget(twin, exposure), images, size, generator)
    colours, height, width = images.shape[1:]
    pruner = Pruner(server, exposure, (colours, height, width))
    return Game(settings, twin, pruner, inverse, exposure, data), history


def fit_disco(
    settings: Disco,
    model: nn.Module,
    data: TrainData,
    exposure: FeatureExposure,
    *,
    generator: torch.Generator,
) -> tuple[nn.Module, Pruner, History]:
    """The trained copy, the pruner, and the losses. See :func:`game`."""
    played, history = game(settings, model, data, exposure, generator=generator)
    history |= played.run()
    pruner = played.pruner.requires_grad_(False)
    for parameter in pruner.parameters():
        parameter.grad = None
    return as_given(played.model, model), pruner, history
