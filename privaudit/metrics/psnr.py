"""Peak signal-to-noise ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privaudit.metrics.base import Metric

if TYPE_CHECKING:
    from torch import Tensor


class Psnr(Metric):
    """``10 · log10(1 / MSE)`` per image; identical images have no finite value.

    Example:
        >>> import torch
        >>> black, grey = torch.zeros(1, 3, 4, 4), torch.full((1, 3, 4, 4), 0.1)
        >>> round(Psnr().score(black, grey)[0].value, 3)
        20.0
        >>> Psnr().score(grey, grey)[0].note
        'identical'

    Source: definition, peak value 1.
    """

    name: ClassVar[str] = "psnr"
    title: ClassVar[str] = "PSNR"
    unit: ClassVar[str] = "dB"
    bounds: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    identical_is_infinite: ClassVar[bool] = True
    source: ClassVar[str] = "definition"

    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """See :class:`~privaudit.metrics.base.Metric`."""
        error = (truth.double() - guess.double()).square().flatten(1).mean(1)
        return -10 * error.log10()
