"""Mean squared error."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privaudit.metrics.base import Metric

if TYPE_CHECKING:
    from torch import Tensor


class Mse(Metric):
    """Mean squared pixel difference: 0 identical.

    Example:
        >>> import torch
        >>> black, grey = torch.zeros(1, 3, 4, 4), torch.full((1, 3, 4, 4), 0.5)
        >>> Mse().score(black, grey)[0].value
        0.25

    Source: definition.
    """

    name: ClassVar[str] = "mse"
    title: ClassVar[str] = "MSE"
    unit: ClassVar[str] = "squared pixel value, pixels in [0, 1]"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    lower_is_leakier: ClassVar[bool] = True
    source: ClassVar[str] = "definition"

    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """See :class:`~privaudit.metrics.base.Metric`."""
        return (truth.double() - guess.double()).square().flatten(1).mean(1)
