"""No defense: the row that all others are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from privaudit.defenses.base import FEATURES, GRADIENT, ClientStepContext, Defense

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privaudit.types import FeatureLayout


class Undefended(Defense):
    """Sends what there is."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "No defense"
    source: ClassVar[str] = ""
    exposures: ClassVar[frozenset[str]] = frozenset({FEATURES, GRADIENT})
    does_not_protect: ClassVar[str] = "It protects nothing."

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """See :class:`~privaudit.defenses.Defense`."""
        return sent

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`."""
        return dict(gradients)
