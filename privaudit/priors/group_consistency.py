"""Group consistency: searches from several seeds look for the same image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privaudit.priors.base import NormInput, Prior

if TYPE_CHECKING:
    from torch import Tensor


class GroupConsistency(Prior):
    """Root mean square distance of each seed's images to the mean over the seeds.

    Example:
        >>> import torch
        >>> pair = torch.tensor([0.0, 2.0]).view(2, 1, 1, 1).expand(2, 1, 4, 4)
        >>> round(float(GroupConsistency(seeds=2).penalty(pair)), 6)
        1.0

    Source: Yin 2021, eq. 11; differs in that images are averaged as they lie, without
    registration.
    """

    name: ClassVar[str] = "group_consistency"
    source: ClassVar[str] = "Yin 2021"

    seeds: int = Field(default=1, ge=1)
    """How many starts stand in the batch, one after the other."""

    def penalty(self, images: Tensor, norms: Sequence[NormInput] = ()) -> Tensor:
        """See :class:`~privaudit.priors.base.Prior`."""
        grouped = images.unflatten(0, (self.seeds, -1))  # type: ignore[no-untyped-call]
        apart: Tensor = grouped - grouped.mean(0, keepdim=True)
        # The root of zero has no derivative: it is kept off it.
        return apart.square().mean().add(1e-12).sqrt()
