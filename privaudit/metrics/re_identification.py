"""Re-identification rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from privaudit.metrics.base import Metric

if TYPE_CHECKING:
    from torch import Tensor


class ReIdentification(Metric):
    """Share of reconstructions whose nearest original is the right one.

    Nearest by mean squared error among all originals of the audit; a tie is not a
    hit unless the tied originals are equal. Chance is 1/batch. Needs no weights.

    Example:
        >>> import torch
        >>> originals = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
        >>> ReIdentification().score(originals, originals * 0.9)[0].value
        1.0

    Source: definition.
    """

    name: ClassVar[str] = "re_identification"
    title: ClassVar[str] = "Re-identification rate"
    unit: ClassVar[str] = "share of images"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    scope: ClassVar[Literal["image", "set"]] = "set"
    source: ClassVar[str] = "definition"

    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """See :class:`~privaudit.metrics.base.Metric`."""
        if len(truth) < 2:
            return torch.full((1,), float("nan"))
        flat = truth.double().flatten(1)
        hits = 0
        for index, image in enumerate(guess.double().flatten(1)):
            apart = (flat - image).square().mean(1)
            nearest = apart <= apart.min()
            alike = bool((flat[nearest] == flat[index]).all())
            hits += bool(nearest[index]) and (int(nearest.sum()) == 1 or alike)
        return torch.tensor([hits / len(truth)], dtype=torch.float64)
