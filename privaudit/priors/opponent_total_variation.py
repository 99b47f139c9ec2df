"""Total variation of brightness and of colour, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.priors._image_base import ImagePrior
from privaudit.priors.pixel_total_variation import PixelTotalVariation

if TYPE_CHECKING:
    from torch import Tensor

COLOUR = 2.0
"""How much more a difference of colour counts. Source: measured (MobileNetV2, four
photographs: 1, 2 and 3 have SSIM .352, .361 and .353)."""
OPPONENT = (
    (0.299, 0.587, 0.114),
    (-0.168736, -0.331264, 0.5),
    (0.5, -0.418688, -0.081312),
)
"""Rows: brightness, blue against yellow, red against green (Y, Cb, Cr of BT.601)."""


class OpponentTotalVariation(ImagePrior):
    """``TV(Y) + 2·TV(Cb) + 2·TV(Cr)`` for three channels, else the plain one.

    Edges of natural images are edges of brightness; colour has few of its own. In red,
    green and blue every edge counts three times and colour noise hardly more than noise
    of brightness. A grey picture has the same value as by
    :class:`~privaudit.priors.PixelTotalVariation`.

    Example:
        >>> import torch
        >>> grey = torch.arange(4.0).expand(1, 3, 4, 4) / 4
        >>> round(OpponentTotalVariation().penalty(grey).item(), 4)
        0.1875

    Source: Rudin 1992; the colours of ITU-R BT.601.
    """

    name: ClassVar[str] = "opponent_total_variation"
    source: ClassVar[str] = "Rudin 1992; ITU-R BT.601"

    def penalty(self, images: Tensor) -> Tensor:
        """See :class:`~privaudit.priors.ImagePrior`."""
        if images.shape[1] != len(OPPONENT):
            return PixelTotalVariation().penalty(images)
        weights = images.new_tensor([[1.0], [COLOUR], [COLOUR]])
        rows = weights * images.new_tensor(OPPONENT)
        apart = torch.einsum("ij,njhw->nihw", rows, images)
        # Three channels are averaged over, of which a grey picture has one.
        return len(OPPONENT) * PixelTotalVariation().penalty(apart)
