"""What a diffusion prior is: something that says which part of an image is noise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privaudit._plugin import Plugin
from privaudit.priors.diffusion.card import PriorCard
from privaudit.priors.diffusion.schedule import Prediction

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Shape = tuple[int, int, int]
"""(channels, height, width)."""


@dataclass(frozen=True, eq=False)
class DiffusionModel:
    """A prior in memory. Pixel and latent priors differ in ``decode`` and ``encode``.

    Attributes:
        predict: (batch, …) noisy and (batch,) steps → what ``prediction`` names.
        alphas: (levels,), ᾱ falling with the level.
        prediction: What ``predict`` gives.
        decode: z of shape (batch, *latent_shape) → images, [-1, 1] being black to
            white; values outside are possible.
        encode: Such images, of any size → z.
        latent_shape: Shape of z for images of a shape; raises ConfigError where it
            cannot draw such images.
        clip: x̂₀ lies in [-1, 1], so that sampling may keep it there.
        card: What to tell the reader.
        notes: What happened on the way, such as a decoder that had to run in float32;
            grows while it is used.
    """

    predict: Callable[[Tensor, Tensor], Tensor]
    alphas: Tensor
    prediction: Prediction
    decode: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor], Tensor]
    latent_shape: Callable[[Shape], Shape]
    clip: bool
    card: PriorCard
    notes: list[str] = field(default_factory=list)


class DiffusionPrior(Plugin):
    """Base of diffusion priors. A subclass says where its weights come from."""

    def check(self) -> None:
        """Refuse what is plainly not there, in a moment and before anything runs.

        Raises:
            ConfigError: It is nowhere, or of another kind.
            MissingDependencyError: A library that it needs is not installed.
        """

    @abstractmethod
    def load(self, device: torch.device) -> DiffusionModel:
        """Read the weights.

        Args:
            device: Where it is to run.

        Raises:
            ConfigError: The weights are not there, damaged, or of another kind.
            MissingDependencyError: A library that it needs is not installed.
        """
