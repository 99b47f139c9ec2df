"""What an interrupted audit has finished, and how the next run takes it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from privaudit.attacks import Attack
from privaudit.attacks._scene import Structure, structure_of
from privaudit.types import (
    AttackerKnowledge,
    Batch,
    Observation,
    Reconstruction,
    Target,
)

UNREACHED = "the audit was interrupted before this client"
"""Reason of an attack on a client that was not begun any more."""


@dataclass(frozen=True, eq=False)
class Finished:
    """One attack on one client that ended, with all that its run left behind.

    Attributes:
        outcome: What came of it.
        seconds: What it cost.
        learnt: Names of what it added to the memory that clients share.
    """

    outcome: Reconstruction
    seconds: float
    learnt: tuple[str, ...] = ()

    def learn_again(
        self, target: Target, batch: Batch, labels: Tensor | None, *, seed: int
    ) -> None:
        """Look at the model where its run did, for those that come after it.

        Whoever looks first draws from its own generator; were that another client than
        in an uninterrupted audit, its search would start elsewhere.

        Args:
            target: Whose memory it goes into.
            batch: What the client holds.
            labels: Those that the attack was given.
            seed: Of the run.
        """
        if not any(name.startswith(Structure.__name__) for name in self.learnt):
            return
        known = AttackerKnowledge(labels, None, target.knowledge.joint)
        aimed = Target(target.model, target.exposure, known, target.memory)
        shown = Observation({}, len(batch), batch.shape)
        structure_of(aimed, shown, torch.Generator().manual_seed(seed))


class Kept(Protocol):
    """Where finished attacks on clients are kept, so that an audit can go on."""

    def recall(self, attack: Attack, number: int) -> Finished | None:
        """What was finished before for client ``number``; None: nothing."""
        ...

    def keep(self, attack: Attack, number: int, finished: Finished) -> None:
        """Keep it, unless it has to be tried again."""
        ...
