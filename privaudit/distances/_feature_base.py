"""A distance between the features of two images: differentiable, one value an image."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureLayout


class FeatureDistance(Plugin):
    """Base of all distances between features. A subclass implements :meth:`measure`."""

    source: ClassVar[str]

    @abstractmethod
    def measure(self, guess: Tensor, observed: Tensor, layout: FeatureLayout) -> Tensor:
        """One value an image, (batch,), 0 where both agree.

        Args:
            guess: (batch, …), the features of the attacker's guess, with their graph.
            observed: (batch, …), what the device sent.
            layout: Which axis is what.
        """

    def floor(
        self, observed: Tensor, noise_share: float, layout: FeatureLayout
    ) -> Tensor:
        """What :meth:`measure` gives at the truth, (batch,): noise keeps it off zero.

        Args:
            observed: (batch, …), with noise of one size in all values of an image.
            noise_share: Its mean square as a share of that of ``observed``.
            layout: Which axis is what.
        """
        return observed.new_zeros(len(observed))


def noise_of(observed: Tensor, noise_share: float) -> Tensor:
    """Mean square of the noise in each image, (batch,), from values that were sent."""
    flat = observed.flatten(1)
    sent = flat.ne(0).sum(1).clamp_min(1)
    found: Tensor = noise_share * flat.square().sum(1) / sent
    return found
