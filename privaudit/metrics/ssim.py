"""Structural similarity."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privaudit.metrics.base import Metric

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 11
SIGMA = 1.5


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
        # Variances are differences of large numbers: in float32 values pass 1.
        value = structural_similarity_index_measure(
            guess.double(),
            truth.double(),
            gaussian_kernel=True,
            sigma=SIGMA,
            data_range=1.0,
            reduction="none",
        )
        if isinstance(value, tuple):
            value = value[0]
        # Rounding may step a hair beyond the bounds of the definition.
        return value.reshape(len(truth)).clamp(-1, 1).clamp(-1.0, 1.0)
