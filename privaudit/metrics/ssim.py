"""Structural similarity."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.metrics.base import Metric

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 11
SIGMA = 1.5
_AT_ONCE = 8
"""Pairs in one call: the windows of a pair take some hundred times its memory."""


class Ssim(Metric):
    """How alike two images look: 1 identical, 0 unrelated, negative when inverted.

    Gaussian window of 11 pixels, σ = 1.5, data range 1, mean over channels and over
    the whole image with mirrored borders (scikit-image leaves out 5 pixels at every
    border: values differ by some hundredths). Not defined below 11 pixels a side.

    Example:
        >>> import torch
        >>> ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16)
        >>> round(Ssim().score(ramp, ramp)[0].value, 4)
        1.0

    Source: Wang 2004, computed by torchmetrics.
    """

    name: ClassVar[str] = "ssim"
    title: ClassVar[str] = "SSIM"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    source: ClassVar[str] = "Wang 2004"

    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """See :class:`~privaudit.metrics.base.Metric`."""
        from torchmetrics.functional.image import structural_similarity_index_measure

        if min(truth.shape[-2:]) < WINDOW:
            return truth.new_full((len(truth),), float("nan"))
        values = []
        for start in range(0, len(truth), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            value = structural_similarity_index_measure(
                guess[rows],
                truth[rows],
                gaussian_kernel=True,
                sigma=SIGMA,
                data_range=1.0,
                reduction="none",
            )
            values.append((value[0] if isinstance(value, tuple) else value).reshape(-1))
        # Variances are differences of large numbers: rounding may pass the bounds.
        return torch.cat(values).clamp(-1.0, 1.0)
