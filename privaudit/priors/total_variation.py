"""Total variation: neighbouring pixels are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from privaudit.priors.base import NormInput, Prior

if TYPE_CHECKING:
    from torch import Tensor


class TotalVariation(Prior):
    """``mean |∂x| + mean |∂y|`` of the image as the model takes it.

    Example:
        >>> import torch
        >>> ramp = torch.arange(4.0).expand(1, 1, 4, 4)
        >>> float(TotalVariation().penalty(ramp))
        1.0

    Source: Rudin 1992; scaled as Geiping 2020.
    """

    name: ClassVar[str] = "total_variation"
    source: ClassVar[str] = "Rudin 1992; Geiping 2020"

    def penalty(self, images: Tensor, norms: Sequence[NormInput] = ()) -> Tensor:
        """See :class:`~privaudit.priors.base.Prior`."""
        across = (images[..., :, 1:] - images[..., :, :-1]).abs().mean()
        down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
        return across + down
