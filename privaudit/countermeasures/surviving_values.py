"""Values that were zeroed are not compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from privaudit.countermeasures._channels import reference
from privaudit.countermeasures.base import Countermeasure, SeenFeatures

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.defenses import Detection


class SurvivingValues(Countermeasure):
    """Compares only values that were sent other than zero.

    Behind a rectifier some are zero by themselves; nobody can tell these apart, so they
    are left out as well. An inverse network learns from features zeroed alike.
    Source: design of this project.
    """

    name: ClassVar[str] = "surviving_values"
    title: ClassVar[str] = "Zeroed values left out"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset({"random_zeroing"})
    exposures: ClassVar[frozenset[str]] = frozenset({"features"})
    rank: ClassVar[int] = 30

    def see_features(
        self, seen: SeenFeatures, found: Detection, generator: torch.Generator
    ) -> SeenFeatures:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        zeros = float(seen.observation.features.eq(0).double().mean())
        usual = float(reference(seen).eq(0).double().mean())
        estimate = max(0.0, (zeros - usual) / max(1 - usual, 1e-12))
        ratio = found.estimate.get("ratio", estimate)
        target = seen.target
        aimed = replace(
            target,
            comparisons=(*target.comparisons, _where_sent),
            corruptions=(*target.corruptions, _Zeroing(ratio)),
        )
        note = (
            f"{self.name}: {zeros:.1%} of the values were zero and not compared; "
            f"without a defense {usual:.1%} are"
        )
        return replace(seen, target=aimed, notes=(*seen.notes, note))


def _where_sent(guess: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    return guess * observed.ne(0).to(guess.dtype), observed


@dataclass(frozen=True, eq=False)
class _Zeroing:
    """Features with a random share of their values zero."""

    ratio: float

    def __call__(self, features: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(features.shape, generator=generator) < self.ratio
        return features.masked_fill(drawn.to(features.device), 0.0)
