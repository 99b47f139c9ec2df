"""Recall of the set of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.metrics._token_base import TokenMetric

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import TokenBatch, TokenReconstruction


class TokenSetRecall(TokenMetric):
    """Share of a sample's distinct ids that were found, without their order.

    Two positions with one id count once; where positions have embeddings of their
    own, the same number in two of them is two ids.

    Example:
        >>> import torch
        >>> from privaudit.types import LeakedIds, TokenBatch, TokenReconstruction
        >>> ids = torch.tensor([[7, 3, 7, 9]])
        >>> truth = TokenBatch(ids, None, torch.ones_like(ids, dtype=torch.bool))
        >>> found = [LeakedIds("e.weight", (0, 1, 2, 3), (3, 7))]
        >>> guess = TokenReconstruction(found, None, "plateau")
        >>> round(TokenSetRecall().score(truth, guess)[0].value, 3)
        0.667

    Source: definition.
    """

    name: ClassVar[str] = "token_set_recall"
    title: ClassVar[str] = "Token set recall"
    unit: ClassVar[str] = "share of distinct ids"
    source: ClassVar[str] = "definition"

    def measure(self, truth: TokenBatch, guess: TokenReconstruction) -> Tensor:
        """See :class:`~privaudit.metrics._token_base.TokenMetric`."""
        if guess.leaked is None:
            return torch.full((len(truth),), float("nan"))
        found: dict[int, set[int]] = {}
        group: dict[int, int] = {}
        for number, leak in enumerate(guess.leaked):
            for position in leak.positions:
                found.setdefault(position, set()).update(leak.ids)
                group.setdefault(position, number)
        shares = []
        for ids, counted in zip(truth.ids, truth.counted, strict=True):
            held = {
                (group.get(t, -1), int(ids[t])): int(ids[t]) in found.get(t, ())
                for t in counted.nonzero().flatten().tolist()
            }
            shares.append(sum(held.values()) / len(held) if held else float("nan"))
        return torch.tensor(shares, dtype=torch.double)

    def missing(self, guess: TokenReconstruction) -> str:
        """Why there is no number, in a few words."""
        return "no ids found" if guess.leaked is None else "nothing but padding"
