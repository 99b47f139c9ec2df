"""A guess is compared by its signs: what has the right one is not at fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from privaudit.countermeasures.base import Countermeasure, SeenGradient
from privaudit.defenses.base import GRADIENT

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privaudit.defenses import Detection
    from privaudit.types import Gradients


class SignLoss(Countermeasure):
    """The guess is held against the nearest gradient that has the signs that were sent.

    An entry whose sign is right is not at fault, whatever its size. Each parameter is
    first divided by its root mean square: all that is known of its scale is nothing.
    Of the comparisons that were tried (soft signs by tanh among them) this one gave by
    far the best images.
    Source: design of this project.
    """

    name: ClassVar[str] = "sign_loss"
    title: ClassVar[str] = "Comparison of signs"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset({"sign"})
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})

    def see_gradient(
        self, seen: SeenGradient, found: Detection, generator: torch.Generator
    ) -> SeenGradient:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        target = replace(seen.target, comparisons=(*seen.target.comparisons, by_sign))
        note = "comparison of signs: an entry of the right sign is not at fault"
        return replace(seen, target=target, notes=(*seen.notes, note))


def by_sign(guess: Gradients, observed: Gradients) -> tuple[Gradients, Gradients]:
    """The guess, each parameter at size one, and its projection on the signs."""
    sized = {n: g / _size(g) for n, g in guess.items()}
    nearest = dict(observed)
    for name in observed.keys() & sized.keys():
        sign = observed[name].sign()
        nearest[name] = (sized[name].detach() * sign).clamp_min(0) * sign
    return sized, nearest


def _size(values: Tensor) -> Tensor:
    return values.detach().square().mean().sqrt().clamp_min(1e-30)
