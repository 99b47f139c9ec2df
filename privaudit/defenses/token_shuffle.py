"""Patch tokens are sent in a random order."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.defenses._tokens import require_tokens
from privaudit.defenses._traces import disorder, misplaced, ramp
from privaudit.defenses.base import (
    FEATURES,
    Defense,
    Detection,
    FeatureEvidence,
)

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureLayout


class TokenShuffle(Defense):
    """Permutes the patch tokens of each image anew; prefix tokens stay in front.

    Source: Yao 2022 (Lei 2025, section 5.5).
    """

    name: ClassVar[str] = "token_shuffle"
    title: ClassVar[str] = "Token shuffle"
    source: ClassVar[str] = "Lei 2025"
    exposures: ClassVar[frozenset[str]] = frozenset({FEATURES})
    does_not_protect: ClassVar[str] = (
        "What a token shows of its patch, and its place as far as the token tells it: "
        "a classifier of positions puts tokens back."
    )

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """See :class:`~privaudit.defenses.Defense`."""
        prefix = require_tokens(self, layout)
        patches = sent.shape[1] - prefix
        order = torch.randperm(patches, generator=generator).to(sent.device) + prefix
        return torch.cat([sent[:, :prefix], sent[:, order]], 1)

    @classmethod
    def detect_features(cls, seen: FeatureEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        turned, lost = disorder(seen), misplaced(seen)
        if turned is None and lost is None:
            return None
        if turned is not None:
            text = f"{turned / 2:.0%} of neighbouring tokens changed order on resending"
            confidence = ramp(turned, 0.3)
        else:
            text = f"places tell {lost or 0.0:.0%} less of tokens than they should"
            confidence = ramp(lost or 0.0, 0.8)
        return Detection(defense=cls.name, confidence=confidence, evidence=text)
