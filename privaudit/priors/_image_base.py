"""What images look like, one value an image: what attacks on features add to a loss."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin

if TYPE_CHECKING:
    from torch import Tensor


class ImagePrior(Plugin):
    """Base of priors on single images. A subclass implements :meth:`penalty`."""

    source: ClassVar[str]

    @abstractmethod
    def penalty(self, images: Tensor) -> Tensor:
        """How unlikely each image is, (batch,): smaller is likelier.

        Args:
            images: (batch, channels, height, width), [0, 1] being black to white.
        """
