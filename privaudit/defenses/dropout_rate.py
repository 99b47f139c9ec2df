"""Dropout in the model, which many take for a defense."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr

from privaudit.defenses.base import (
    GRADIENT,
    ClientStepContext,
    Defense,
    Fitted,
    TrainData,
)
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from privaudit.exposure import FeatureExposure, GradientExposure

_NAMES = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")


class DropoutRate(Defense):
    """Every dropout layer of the model drops with this probability.

    Kept because many believe in it. The masks show in the gradient: behind a first
    linear layer they make the leak exact, in batches too.
    Source: Scheliga 2023, which asks the question of its title.
    """

    name: ClassVar[str] = "dropout_rate"
    title: ClassVar[str] = "Dropout in the model"
    source: ClassVar[str] = "Scheliga 2023"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    does_not_protect: ClassVar[str] = (
        "Anything from an attacker who takes masks into account: they can be read off "
        "the gradient, or found together with the image."
    )
    known_to_attacks: ClassVar[bool] = True

    trained: ClassVar[bool] = True

    p: float = Field(default=0.5, ge=0, lt=1)
    """p, the probability of dropping."""
    _set: bool = PrivateAttr(default=False)

    def fit(
        self,
        model: nn.Module,
        data: TrainData,
        *,
        exposure: FeatureExposure | GradientExposure,
        generator: torch.Generator,
    ) -> Fitted:
        """A copy of ``model`` with the rate set; nothing is trained.

        Raises:
            ConfigError: The model has no dropout layer.
        """
        changed = copy.deepcopy(model)
        layers = [m for m in changed.modules() if type(m).__name__ in _NAMES]
        if not layers:
            raise ConfigError(
                f"defense {self.name}",
                expected="a model with dropout layers (torch.nn.Dropout)",
                got=f"{type(model).__name__}, which has none",
                hint="Functional dropout has no place where a rate could be set.",
            )
        for layer in layers:
            layer.p = self.p  # type: ignore[assignment]
        fitted = self.model_copy()
        fitted._set = True
        return Fitted(changed, fitted, {})

    def require_fitted(self) -> None:
        """See :class:`~privaudit.defenses.Defense`."""
        if not self._set:
            raise ConfigError(
                f"defense {self.name}",
                expected="a model whose rate was set: fit(model, …)",
                got="one that was not asked",
                hint="compare_defenses does it; in an audit, build the model with it.",
            )

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Nothing: the model itself drops."""
        self.require_fitted()
        return dict(gradients)
