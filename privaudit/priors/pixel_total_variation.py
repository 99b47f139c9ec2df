"""Total variation of one image in [0, 1], per pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privaudit.priors._image_base import ImagePrior

if TYPE_CHECKING:
    from torch import Tensor


class PixelTotalVariation(ImagePrior):
    """``(Σ|∂x| + Σ|∂y|) / (C·H·W)`` of each image on [0, 1].

    Example:
        >>> import torch
        >>> ramp = torch.arange(4.0).expand(1, 1, 4, 4) / 4
        >>> PixelTotalVariation().penalty(ramp).tolist()
        [0.1875]

    Source: Rudin 1992; scaled as Lei 2025 use it (their code).
    """

    name: ClassVar[str] = "pixel_total_variation"
    source: ClassVar[str] = "Rudin 1992; Lei 2025"

    def penalty(self, images: Tensor) -> Tensor:
        """See :class:`~privaudit.priors.ImagePrior`."""
        across = (images[..., :, 1:] - images[..., :, :-1]).abs().flatten(1).sum(1)
        down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).sum(1)
        return (across + down) / images[0].numel()
