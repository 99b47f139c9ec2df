"""L2: pixels lie near the mean of all images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from privaudit.priors.base import NormInput, Prior

if TYPE_CHECKING:
    from torch import Tensor


class ImageL2(Prior):
    """``‖x‖ / √n`` of the image as the model takes it: 1 for unit pixels.

    Example:
        >>> import torch
        >>> round(float(ImageL2().penalty(torch.full((1, 3, 4, 4), 2.0))), 6)
        2.0

    Source: Yin 2021, eq. 8; differs in √n, so that the size of an image is no matter.
    """

    name: ClassVar[str] = "image_l2"
    source: ClassVar[str] = "Yin 2021"

    def penalty(self, images: Tensor, norms: Sequence[NormInput] = ()) -> Tensor:
        """See :class:`~privaudit.priors.base.Prior`."""
        # The root of zero has no derivative: it is kept off it.
        return images.square().flatten(1).mean(1).add(1e-12).sqrt().mean()
