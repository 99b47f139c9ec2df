"""Shuffled tokens are put where a classifier says that they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.countermeasures._position_classifier import (
    Lesson,
    PositionClassifier,
    best_places,
    classifier_for,
)
from privaudit.countermeasures.base import Countermeasure, SeenFeatures

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.defenses import Detection

NO_TOKENS = "what is sent are no tokens: none was moved"


class ReorderTokens(Countermeasure):
    """Each patch token goes where it most likely comes from, no two into one place.

    ``argmax_π Σ_i log p(π(i) | token i)`` by the Hungarian method, with p a two-layer
    classifier that learnt positions on the attacker's own images. Places for which no
    token was sent stay zero, and distances leave them out.
    Source: Lei 2025, section 5.5.
    """

    name: ClassVar[str] = "reorder_tokens"
    title: ClassVar[str] = "Tokens put back by a position classifier"
    source: ClassVar[str] = "Lei 2025"
    against: ClassVar[frozenset[str]] = frozenset({"token_shuffle", "token_drop"})
    exposures: ClassVar[frozenset[str]] = frozenset({"features"})
    rank: ClassVar[int] = 40

    steps: int = Field(default=1000, ge=1)
    """Of training, each on 2,048 tokens."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Of Adam."""
    width: int | None = Field(default=None, ge=1)
    """Units of the hidden layer; None: as many as a token has channels."""
    images: int = Field(default=512, ge=16)
    """Images of the attacker's own to learn from; crops make up for missing ones."""

    @classmethod
    def tiny(cls) -> ReorderTokens:
        """A few steps."""
        return cls(steps=20, images=16)

    def see_features(
        self, seen: SeenFeatures, found: Detection, generator: torch.Generator
    ) -> SeenFeatures:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        layout = seen.target.exposure.layout
        if layout.kind != "tokens":
            return replace(seen, notes=(*seen.notes, f"{self.name}: {NO_TOKENS}"))
        shape = seen.observation.image_shape
        lesson = Lesson(self.steps, self.learning_rate, self.width, self.images)
        classifier = classifier_for(seen.target, shape, lesson, generator)
        features = seen.observation.features
        prefix = layout.prefix_tokens
        placed = torch.stack([_placed(one[prefix:], classifier) for one in features])
        moved = torch.cat([features[:, :prefix], placed], 1)
        note = f"{self.name}: {classifier.note}"
        missing = float(placed.eq(0).all(-1).double().mean())
        target = seen.target
        if missing:
            drops = _Drops(prefix, missing)
            target = replace(target, corruptions=(*target.corruptions, drops))
            note += f"; {missing:.0%} of the tokens were not sent, and not compared"
        return SeenFeatures(
            target, replace(seen.observation, features=moved), (*seen.notes, note)
        )


def _placed(tokens: Tensor, classifier: PositionClassifier) -> Tensor:
    """Tokens (places, channels) in their places; those that are zero were dropped."""
    sent = tokens[tokens.ne(0).any(-1)]
    placed = torch.zeros_like(tokens)
    if len(sent):
        with torch.no_grad():
            likely = classifier.log_probabilities(sent)
        placed[best_places(-likely)] = sent
    return placed


@dataclass(frozen=True, eq=False)
class _Drops:
    """Features with a random share of each image's patch tokens zero."""

    prefix: int
    share: float

    def __call__(self, features: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(features.shape[:2], generator=generator)
        drawn[:, : self.prefix] = 1.0
        dropped = (drawn < self.share).to(features.device)
        return features.masked_fill(dropped[..., None], 0.0)
