"""Patch boundaries: neighbouring patches of a vision transformer fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privaudit.priors._image_base import ImagePrior

if TYPE_CHECKING:
    from torch import Tensor


class PatchBoundary(ImagePrior):
    """``Σ_k ‖x[Pk] − x[Pk−1]‖₂`` over the rows and the columns where patches meet.

    Example:
        >>> import torch
        >>> step = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(1, 1, 4, 4)
        >>> round(PatchBoundary(patch=(2, 2)).penalty(step).item(), 4)
        2.0

    Source: Hatamizadeh 2022; Lei 2025, eq. 15 (norms not squared).
    """

    name: ClassVar[str] = "patch_boundary"
    source: ClassVar[str] = "Hatamizadeh 2022; Lei 2025"

    patch: tuple[int, int] = Field(default=(16, 16))
    """P: (height, width) of a patch in pixels."""

    def penalty(self, images: Tensor) -> Tensor:
        """See :class:`~privaudit.priors.ImagePrior`."""
        down, across = self.patch
        rows = images[..., down::down, :] - images[..., down - 1 : -1 : down, :]
        columns = images[..., across::across] - images[..., across - 1 : -1 : across]
        return _norms(rows, (1, 3)).sum(1) + _norms(columns, (1, 2)).sum(1)


def _norms(jumps: Tensor, axes: tuple[int, int]) -> Tensor:
    # The root of zero has no derivative: it is kept off it.
    return jumps.square().sum(axes).add(1e-12).sqrt()
