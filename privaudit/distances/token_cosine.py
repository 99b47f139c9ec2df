"""Token-wise cosine distance: each token points where the observed one points."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.distances._feature_base import FeatureDistance, noise_of

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureLayout

_AXES = {"tokens": -1, "nhwc": -1, "nchw": 1, "vector": -1}


class TokenCosine(FeatureDistance):
    """``1 − mean_t ⟨h_t, h*_t⟩ / (‖h_t‖·‖h*_t‖)``, prefix tokens included.

    Blind to the length of each token. A position of a map counts as a token, a vector
    as one. A token that was sent as zero has no direction and is left out.

    Example:
        >>> import torch
        >>> from privaudit.types import FeatureLayout
        >>> observed = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> guess = torch.tensor([[[3.0, 0.0], [1.0, 0.0]]])
        >>> TokenCosine().measure(guess, observed, FeatureLayout("tokens")).tolist()
        [0.5]

    Source: Lei 2025, eq. 11.
    """

    name: ClassVar[str] = "token_cosine"
    source: ClassVar[str] = "Lei 2025"

    def measure(self, guess: Tensor, observed: Tensor, layout: FeatureLayout) -> Tensor:
        """See :class:`~privaudit.distances.FeatureDistance`."""
        axis = _AXES[layout.kind]
        inner = (guess * observed).sum(axis)
        theirs = torch.linalg.vector_norm(observed, dim=axis)
        tiny = torch.finfo(observed.dtype).tiny
        # The root of zero has no derivative: a zero guess is kept off it.
        off_zero = (1e-8 * theirs).square().clamp_min(tiny)
        ours = (guess.square().sum(axis) + off_zero).sqrt()
        cosine = (inner / (ours * theirs).clamp_min(tiny)).reshape(len(inner), -1)
        sent = (theirs > 0).reshape(cosine.shape).to(cosine.dtype)
        distance: Tensor = 1 - (cosine * sent).sum(1) / sent.sum(1).clamp_min(1)
        return distance

    def floor(
        self, observed: Tensor, noise_share: float, layout: FeatureLayout
    ) -> Tensor:
        """``1 − mean_t √(1 − σ² / mean h*_t²)``: noise turns each token away."""
        axis = _AXES[layout.kind]
        size = observed.square().mean(axis).reshape(len(observed), -1)
        there = observed.ne(0).to(size.dtype).mean(axis).reshape(size.shape)
        sent = (size > 0).to(size.dtype)
        noise = noise_of(observed, noise_share)[:, None] * there
        own = (1 - noise / torch.where(size > 0, size, 1)).clamp_min(0).sqrt()
        found: Tensor = 1 - (own * sent).sum(1) / sent.sum(1).clamp_min(1)
        return found
