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
