"""A prior: how an unknown becomes an image, and how unlikely that image is."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin

if TYPE_CHECKING:
    from torch import Tensor


class Prior(Plugin):
    """Base of all priors. A subclass implements :meth:`penalty`."""

    source: ClassVar[str]

    @abstractmethod
    def penalty(self, images: Tensor) -> Tensor:
        """How unlikely ``images`` are: a scalar, smaller is likelier.

        Args:
            images: (batch, channels, height, width) as the model takes them.
        """
