"""Shuffled tokens are matched with those of the guess, anew at each comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from privaudit.countermeasures._position_classifier import (
    Lesson,
    PositionClassifier,
    best_places,
    classifier_for,
)
from privaudit.countermeasures.base import Countermeasure, SeenFeatures
from privaudit.countermeasures.reorder_tokens import NO_TOKENS

if TYPE_CHECKING:
    from privaudit.defenses import Detection


class MatchTokens(Countermeasure):
    """Each token that was sent is compared with the one of the guess that is nearest.

    ``argmin_π Σ_j ‖h_π(j) − h*_j‖² / ‖h*_j‖² − λ·log p(π(j) | h*_j)``, by the Hungarian
    method, at every comparison. p is the classifier of ``reorder_tokens``.
    Source: beyond the papers; the assignment by Kuhn 1955.
    """

    name: ClassVar[str] = "match_tokens"
    title: ClassVar[str] = "Tokens matched inside the search"
    source: ClassVar[str] = "Kuhn 1955"
    against: ClassVar[frozenset[str]] = frozenset({"token_shuffle", "token_drop"})
    exposures: ClassVar[frozenset[str]] = frozenset({"features"})
    rank: ClassVar[int] = 45
    by_default: ClassVar[bool] = False

    position_weight: float = Field(default=0.1, ge=0)
    """λ of what the classifier says; 0: there is none, and nothing is trained."""
    steps: int = Field(default=1000, ge=1)
    """Of the classifier's training."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Of Adam."""
    width: int | None = Field(default=None, ge=1)
    """Units of the hidden layer; None: as many as a token has channels."""
    images: int = Field(default=512, ge=16)
    """Images of the attacker's own to learn from."""

    @classmethod
    def tiny(cls) -> MatchTokens:
        """A few steps."""
        return cls(steps=20, images=16)

    def see_features(
        self, seen: SeenFeatures, found: Detection, generator: torch.Generator
    ) -> SeenFeatures:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        layout, target = seen.target.exposure.layout, seen.target
        if layout.kind != "tokens":
            return replace(seen, notes=(*seen.notes, f"{self.name}: {NO_TOKENS}"))
        classifier, said = None, ""
        if self.position_weight:
            lesson = Lesson(self.steps, self.learning_rate, self.width, self.images)
            shape = seen.observation.image_shape
            classifier = classifier_for(target, shape, lesson, generator)
            said = f"; {classifier.note}"
        match = _Match(layout.prefix_tokens, classifier, self.position_weight)
        note = f"{self.name}: tokens are matched at each comparison{said}"
        return replace(
            seen,
            target=replace(
                target,
                comparisons=(*target.comparisons, match),
                corruptions=(*target.corruptions, match.shuffled),
            ),
            notes=(*seen.notes, note),
        )


@dataclass(frozen=True, eq=False)
class _Match:
    """The comparison: the guess's tokens in the order of those that were sent."""

    prefix: int
    classifier: PositionClassifier | None
    weight: float

    def __call__(self, guess: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        ours, theirs = guess[:, self.prefix :], observed[:, self.prefix :]
        with torch.no_grad():
            costs = self._costs(ours, theirs)
            sent = theirs.ne(0).any(-1)
            order = torch.stack(
                [_order(c, s) for c, s in zip(costs, sent, strict=True)]
            )
        moved = ours.gather(1, order[..., None].expand_as(ours))
        return torch.cat([guess[:, : self.prefix], moved], 1), observed

    def shuffled(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Features with the patch tokens of each image in a random order."""
        drawn = torch.rand(features.shape[:2], generator=generator)
        drawn[:, : self.prefix] = -1.0
        order = drawn.argsort(stable=True, dim=1).to(features.device)
        return features.gather(1, order[..., None].expand_as(features))

    def _costs(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """(rows, sent, places)."""
        size = theirs.square().sum(-1, keepdim=True)
        tiny = torch.finfo(theirs.dtype).tiny
        apart = torch.cdist(theirs, ours).square() / size.clamp_min(tiny)
        if self.classifier is None:
            return apart
        likely = self.classifier.log_probabilities(theirs)
        return apart - self.weight * likely


def _order(cost: Tensor, sent: Tensor) -> Tensor:
    """(places,): which token of the guess stands where; the rest fill the gaps."""
    taken = best_places(cost[sent])
    order = torch.empty(len(sent), dtype=torch.long, device=cost.device)
    order[sent] = taken
    free = torch.ones_like(sent)
    free[taken] = False
    order[~sent] = free.nonzero()[:, 0]
    return order
