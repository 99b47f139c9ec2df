"""A prior: how an unknown becomes an image, and how unlikely that image is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class NormInput:
    """What one batch norm was given in a pass, and what it remembers of training.

    Attributes:
        values: (batch, channels, ...), with their graph.
        mean: (channels,), the running mean before this pass.
        var: (channels,), the running variance before this pass.
    """

    values: Tensor
    mean: Tensor
    var: Tensor


class Prior(Plugin):
    """Base of all priors. A subclass implements :meth:`penalty`."""

    source: ClassVar[str]
    watches_norms: ClassVar[bool] = False
    """True when it looks at what the model's batch norms are given."""

    @abstractmethod
    def penalty(self, images: Tensor, norms: Sequence[NormInput] = ()) -> Tensor:
        """How unlikely ``images`` are: a scalar, smaller is likelier.

        Args:
            images: (batch, channels, height, width) as the model takes them; where
                several starts are searched together, theirs one after the other.
            norms: What each batch norm was given; empty where nobody asked, or the
                model has none.
        """
