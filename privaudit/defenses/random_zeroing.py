"""A random share of the values is not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.defenses._traces import difference, empty_tokens, ramp, zeros
from privaudit.defenses.base import (
    FEATURES,
    Defense,
    Detection,
    FeatureEvidence,
)

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureLayout


class RandomZeroing(Defense):
    """``h' = b·h``, with b zero for each value independently at probability ``ratio``.

    What is left is not scaled up by 1 / (1 − ratio), as dropout does it: the server
    gets the values as they are.
    Source: He 2020 (dropout as a defense in collaborative inference); differs in that
    no scale is applied.
    """

    name: ClassVar[str] = "random_zeroing"
    title: ClassVar[str] = "Random zeroing"
    source: ClassVar[str] = "He 2020"
    exposures: ClassVar[frozenset[str]] = frozenset({FEATURES})
    does_not_protect: ClassVar[str] = (
        "The values that are sent: zeros show where values are missing, and as long as "
        "those that are left outnumber the pixels they determine the image."
    )

    ratio: float = Field(default=0.5, gt=0, lt=1)
    """p, share of the values that become zero, on average."""

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """See :class:`~privaudit.defenses.Defense`."""
        zeroed = torch.rand(sent.shape, generator=generator) < self.ratio
        return sent.masked_fill(zeroed.to(sent.device), 0.0)

    @classmethod
    def detect_features(cls, seen: FeatureEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        gap = difference(seen)
        more, spread = zeros(seen)
        if gap is not None:
            # Two draws: a value is zero in one of them only with 2·p·(1 − p).
            ratio = (1 - max(0.0, 1 - 2 * gap.zeroed) ** 0.5) / 2
            text = f"{gap.zeroed:.1%} of the values are zero in one sending of two"
            confidence = ramp(gap.zeroed, 0.01)
        else:
            ratio = max(0.0, more - empty_tokens(seen))
            text = f"{ratio:.1%} more zeros than other images have"
            confidence = ramp(ratio, max(0.03, 4 * spread))
        return Detection(
            defense=cls.name, confidence=confidence, evidence=text,
            estimate={"ratio": ratio},
        )  # fmt: skip
