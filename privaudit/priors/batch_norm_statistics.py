"""Batch norm statistics: a batch is spread as the model's training data were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.priors.base import NormInput, Prior

if TYPE_CHECKING:
    from torch import Tensor


class BatchNormStatistics(Prior):
    """``mean_l (‖μ_l(x) − μ_l‖ / √(‖μ_l‖² + Σσ²_l) + ‖σ²_l(x) − σ²_l‖ / ‖σ²_l‖) / 2``.

    Per batch norm l: mean and variance of its input in this pass against its running
    ones. Zero where the model has no batch norm.
    Source: Yin 2021, eq. 9; differs in the denominators and the mean over layers, so
    that depth and width of the model are no matter.
    """

    name: ClassVar[str] = "batch_norm_statistics"
    source: ClassVar[str] = "Yin 2021"
    watches_norms: ClassVar[bool] = True

    def penalty(self, images: Tensor, norms: Sequence[NormInput] = ()) -> Tensor:
        """See :class:`~privaudit.priors.base.Prior`."""
        parts = [_apart(n) for n in norms]
        return torch.stack(parts).mean() if parts else images.new_zeros(())


def _apart(norm: NormInput) -> Tensor:
    across = [d for d in range(norm.values.dim()) if d != 1]
    mean = norm.values.mean(across)
    var = norm.values.var(across, correction=0)
    return (_relative(mean, norm.mean, norm.var) + _relative(var, norm.var)) / 2


def _relative(found: Tensor, wanted: Tensor, spread: Tensor | None = None) -> Tensor:
    """Distance as a share of ``wanted``; of a mean also of the spread around it."""
    scale = wanted.square().sum()
    if spread is not None:
        scale = scale + spread.sum()
    # The root of zero has no derivative: it is kept off it.
    apart = (found - wanted).square().sum().add(1e-12).sqrt()
    return apart / scale.clamp_min(1e-12).sqrt()
