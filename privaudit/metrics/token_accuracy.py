"""Token accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.metrics._token_base import TokenMetric

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import TokenBatch, TokenReconstruction


class TokenAccuracy(TokenMetric):
    """Share of positions whose id was found; not defined where no order was found.

    Example:
        >>> import torch
        >>> from privaudit.types import TokenBatch, TokenReconstruction
        >>> ids = torch.tensor([[7, 3, 9, 0]])
        >>> truth = TokenBatch(ids, None, ids != 0)  # the last one is padding
        >>> found = torch.tensor([[7, 3, 8, -1]])
        >>> guess = TokenReconstruction(None, found, "plateau")
        >>> round(TokenAccuracy().score(truth, guess)[0].value, 3)
        0.667

    Source: definition.
    """

    name: ClassVar[str] = "token_accuracy"
    title: ClassVar[str] = "Token accuracy"
    unit: ClassVar[str] = "share of positions"
    source: ClassVar[str] = "definition"

    def measure(self, truth: TokenBatch, guess: TokenReconstruction) -> Tensor:
        """See :class:`~privaudit.metrics._token_base.TokenMetric`."""
        if guess.sequence is None:
            return torch.full((len(truth),), float("nan"))
        right = (guess.sequence.to(truth.ids) == truth.ids) & truth.counted
        return right.sum(1).double() / truth.counted.sum(1)

    def missing(self, guess: TokenReconstruction) -> str:
        """Why there is no number, in a few words."""
        return "no order found" if guess.sequence is None else "nothing but padding"
