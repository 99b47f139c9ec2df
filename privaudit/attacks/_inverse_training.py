"""Trains a network from features back to images, on images of the attacker's own."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privaudit._progress import tick
from privaudit.attacks._inverse_decoders import decoder_for
from privaudit.attacks._minimise import CHECK_EVERY
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.attacks.inverse_network import InverseNetwork
    from privaudit.types import FeatureTarget

_FOR_STATISTICS = 256
"""Images whose features say what mean and spread the network is given."""


class LearnedInverse(nn.Module):
    """Features → images, with the statistics of the features it learnt from.

    Attributes:
        decoder: Standardised features → images of mean 0 and spread 1.
        mean: Of the features, per channel.
        scale: Their standard deviation, per channel.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, decoder: nn.Module, mean: Tensor, scale: Tensor) -> None:
        """Take ``mean`` and ``scale`` in shapes that broadcast over the features."""
        super().__init__()
        self.decoder = decoder
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def forward(self, features: Tensor, masked: Tensor | None = None) -> Tensor:
        """(batch, …) as they were sent → (batch, C, H, W), about [0, 1]."""
        drawn = self.decoder((features - self.mean) / self.scale, masked)
        return drawn * 0.25 + 0.5  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Trained:
    """What training gave.

    Attributes:
        network: The network, in eval mode.
        images: How many it learnt from.
        iterations: How many were made.
        error: Mean squared error on [0, 1] over the last batches.
        ended: ``""``, or why it ended before its time.
    """

    network: nn.Module
    images: int
    iterations: int
    error: float
    ended: str = ""


def train(
    target: FeatureTarget,
    settings: InverseNetwork,
    *,
    budget: Budget,
    generator: torch.Generator,
) -> Trained:
    """Train a network that undoes the client, up to its cut.

    Ctrl-C ends it and keeps what was learnt.

    Args:
        target: Model, cut, and the public images.
        settings: Size of the network, and how it is trained.
        budget: Seconds and iterations at most.
        generator: Draws weights and batches, on the CPU.

    Raises:
        ConfigError: There are no public images.
    """
    images = require_public(target)
    network = fresh(target, images, settings, generator)
    run = _Training(target, settings, images, network, generator)
    ended = run.loop(budget)
    network.eval().requires_grad_(False)
    return Trained(network, len(images), run.done, run.error, ended)


def fresh(
    target: FeatureTarget,
    images: Tensor,
    settings: InverseNetwork,
    generator: torch.Generator,
) -> LearnedInverse:
    """A network that has learnt nothing yet, on the device of the features."""
    features = features_of(target, images[:_FOR_STATISTICS])
    features = target.corrupted(features, generator)
    layout = target.exposure.layout
    decoder = decoder_for(
        layout,
        tuple(features.shape[1:]),
        _shape(images),
        width=settings.width,
        layers=settings.layers,
        generator=generator,
    )
    channel = 1 if layout.kind == "nchw" else features.dim() - 1
    across = [d for d in range(features.dim()) if d != channel]
    mean = features.mean(across, keepdim=True)[0]
    spread = features.std(across, correction=0, keepdim=True)[0]
    # A channel that never changes tells nothing; it is not blown up either.
    scale = spread.clamp_min(1e-3 * float(spread.mean()) + 1e-12)
    return LearnedInverse(decoder, mean, scale).to(features.device)


def require_public(target: FeatureTarget) -> Tensor:
    """The attacker's own images.

    Raises:
        ConfigError: There are none.
    """
    if target.public is None or len(target.public) == 0:
        raise ConfigError(
            "inverse_network.train",
            expected="public images of the same kind as the private ones",
            got="none",
            hint=HOW_TO_GIVE,
        )
    return target.public


HOW_TO_GIVE = (
    'Pass priors={"public_images": images} to train one, or '
    'priors={"inverse_network": "inverse.safetensors"} to use one.'
)


def _shape(images: Tensor) -> tuple[int, int, int]:
    channels, height, width = images.shape[1:]
    return channels, height, width


def features_of(target: FeatureTarget, images: Tensor) -> Tensor:
    """What the client sends for images on any device, (batch, …) on the model's."""
    device = next((p.device for p in target.model.parameters()), images.device)
    with torch.no_grad():
        sent = target.exposure.predict(target.model, images.to(device))
    return sent.detach().float()


@dataclass(eq=False)
class _Training:
    target: FeatureTarget
    settings: InverseNetwork
    images: Tensor
    network: LearnedInverse
    generator: torch.Generator
    done: int = 0
    error: float = float("nan")

    def loop(self, budget: Budget) -> str:
        """Train; the answer is why it ended before its time, or nothing."""
        settings, started = self.settings, time.monotonic()
        limit = min(settings.iterations, budget.iterations or settings.iterations)
        optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )  # fmt: skip
        recent: list[Tensor] = []
        try:
            while self.done < limit:
                gone = time.monotonic() - started
                progress = self.done / limit
                if budget.seconds is not None:
                    progress = max(progress, gone / budget.seconds)
                if progress >= 1:
                    return f"the time was up after {self.done} iterations"
                self._set_rate(optimiser, progress)
                recent = [*recent[-19:], self._step(optimiser)]
                self.done += 1
                if self.done % CHECK_EVERY == 0 or self.done == limit:
                    self._look(recent, limit)
        except KeyboardInterrupt:
            return INTERRUPTED
        if limit < settings.iterations:
            return f"the budget allows no more than {limit} iterations"
        return ""

    def _step(self, optimiser: torch.optim.Optimizer) -> Tensor:
        settings = self.settings
        chosen = torch.randint(
            len(self.images), (settings.batch_size,), generator=self.generator
        )
        images = self.images[chosen.to(self.images.device)]
        if settings.flip:
            flips = torch.rand(len(images), generator=self.generator) < 0.5
            turned = flips.to(images.device)[:, None, None, None]
            images = torch.where(turned, images.flip(-1), images)
        features = features_of(self.target, images)
        features = self.target.corrupted(features, self.generator)
        drawn = self.network(features, self._masked(features))
        error = (drawn - images.to(drawn)).square().mean()
        optimiser.zero_grad()
        error.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        optimiser.step()
        found: Tensor = error.detach()
        return found

    def _masked(self, features: Tensor) -> Tensor | None:
        layout = self.target.exposure.layout
        if not self.settings.mask_share or layout.kind != "tokens":
            return None
        drawn = torch.rand(features.shape[:2], generator=self.generator)
        drawn[:, : layout.prefix_tokens] = 1.0
        return (drawn < self.settings.mask_share).to(features.device)

    def _set_rate(self, optimiser: torch.optim.Optimizer, progress: float) -> None:
        """Linear up over the warm-up, then a cosine down to nothing."""
        warm_up = self.settings.warm_up
        if progress < warm_up:
            factor = max(progress / warm_up, 0.01)
        else:
            factor = 0.5 * (
                1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up))
            )
        for group in optimiser.param_groups:
            group["lr"] = self.settings.learning_rate * max(factor, 1e-3)

    def _look(self, recent: list[Tensor], limit: int) -> None:
        self.error = float(torch.stack(recent).mean())
        if not math.isfinite(self.error):
            raise ConfigError(
                "inverse_network.train",
                expected="an error that falls",
                got=f"{self.error} after {self.done} iterations",
                hint="Lower learning_rate.",
            )
        tick(self.done, limit, self.error)
