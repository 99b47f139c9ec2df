"""Only what was sent is compared: a zero says that an entry was kept back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from privaudit.countermeasures.base import Countermeasure, SeenGradient
from privaudit.defenses.base import GRADIENT

if TYPE_CHECKING:
    import torch

    from privaudit.defenses import Detection
    from privaudit.types import Gradients


class SurvivingEntries(Countermeasure):
    """Entries that were sent as zero are left out of every comparison of gradients.

    Without it a guess is pulled towards an image whose gradient vanishes there.
    Source: design of this project.
    """

    name: ClassVar[str] = "surviving_entries"
    title: ClassVar[str] = "Surviving entries only"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset({"gradient_pruning", "soteria"})
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    rank: ClassVar[int] = 60

    def see_gradient(
        self, seen: SeenGradient, found: Detection, generator: torch.Generator
    ) -> SeenGradient:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        gradients = seen.observation.gradients.values()
        sent = sum(int(g.count_nonzero()) for g in gradients)
        share = sent / max(1, sum(g.numel() for g in gradients))
        target = replace(seen.target, comparisons=(*seen.target.comparisons, survivors))
        note = f"surviving entries: {share:.1%} of the gradient's entries are compared"
        return replace(seen, target=target, notes=(*seen.notes, note))


def survivors(guess: Gradients, observed: Gradients) -> tuple[Gradients, Gradients]:
    """The guess with zeros where zeros were sent."""
    kept = {n: g * (observed[n] != 0) if n in observed else g for n, g in guess.items()}
    return kept, observed
