"""Mean squared error between features, as a share of their size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.distances._feature_base import FeatureDistance, noise_of

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureLayout


class MeanSquaredError(FeatureDistance):
    """``mean (h − h*)² / mean h*²`` over all values of an image; for tokens, of each.

    Every token counts alike then, however long: some models send a few that are ten
    times as long as the others. One that was sent as zero was dropped and is left out.

    Example:
        >>> import torch
        >>> from privaudit.types import FeatureLayout
        >>> observed, guess = torch.tensor([[2.0, 2.0]]), torch.tensor([[2.0, 1.0]])
        >>> MeanSquaredError().measure(guess, observed, FeatureLayout("vector")).item()
        0.125

    Source: He 2019; differs in the denominator, so that the weight of a prior means
    the same for features of any size.
    """

    name: ClassVar[str] = "mean_squared_error"
    source: ClassVar[str] = "He 2019"

    def measure(self, guess: Tensor, observed: Tensor, layout: FeatureLayout) -> Tensor:
        """See :class:`~privaudit.distances.FeatureDistance`."""
        last = 2 if layout.kind == "tokens" else 1
        error = (guess - observed).square().flatten(last).mean(-1)
        size = observed.square().flatten(last).mean(-1)
        # Features that are zero everywhere have no size: their error counts as it is.
        share: Tensor = error / torch.where(size > 0, size, torch.ones_like(size))
        if last == 1:
            return share
        sent = (size > 0).to(share.dtype)
        return (share * sent).sum(1) / sent.sum(1).clamp_min(1)

    def floor(
        self, observed: Tensor, noise_share: float, layout: FeatureLayout
    ) -> Tensor:
        """``mean_t σ² / mean h*_t²``: short tokens hold more noise than long ones."""
        last = 2 if layout.kind == "tokens" else 1
        size = observed.square().flatten(last).mean(-1)
        there = observed.ne(0).flatten(last).to(size.dtype).mean(-1)
        noise = noise_of(observed, noise_share)
        if last == 1:
            whole: Tensor = noise * there / torch.where(size > 0, size, 1)
            return whole
        share = noise[:, None] * there / torch.where(size > 0, size, 1)
        sent = (size > 0).to(share.dtype)
        found: Tensor = (share * sent).sum(1) / sent.sum(1).clamp_min(1)
        return found
