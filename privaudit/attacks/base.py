"""What every attack is: observation in, reconstruction out, the truth never seen."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin
from privaudit.config import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from privaudit.tape import Tape
    from privaudit.types import Batch, Observation, Reconstruction, Target


INTERRUPTED = "interrupted by hand"
"""Reason of a search that Ctrl-C ended; what was found until then is kept."""


class Attack(Plugin):
    """Base of all attacks. A subclass implements :meth:`run` and states its facts."""

    title: ClassVar[str]
    """For readers of the report."""
    source: ClassVar[str]
    """Paper, as "Surname year"."""
    diagnostic: ClassVar[bool] = False
    """True when it is given what a real attacker lacks; it then never decides."""
    required: ClassVar[bool] = True
    """True when a verdict of "no leak found" needs it wherever it applies."""

    control_batch: ClassVar[int] = 1
    """Images of the case that it must solve in every audit where it runs."""

    @classmethod
    @abstractmethod
    def tiny(cls) -> Attack:
        """An instance that contract tests can run in a second."""

    @abstractmethod
    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> Reconstruction:
        """Reconstruct what the client held.

        Args:
            target: Model, exposure and what the attacker knows; never the truth.
            observation: What the client sent.
            budget: Seconds, iterations, restarts still to be spent.
            generator: Source of all randomness, on the CPU.
        """

    def run_many(
        self,
        targets: Sequence[Target],
        observations: Sequence[Observation],
        *,
        budget: Budget,
        generators: Sequence[torch.Generator],
    ) -> list[Reconstruction] | None:
        """Reconstruct for many clients of one model at once.

        Args:
            targets: One a client: each may know other labels.
            observations: What each sent.
            budget: For all of them together.
            generators: One a client, as :meth:`run` would get it.

        Returns:
            One a client, as :meth:`run` would have it up to rounding; None where they
            must be attacked one at a time.
        """
        return None

    def loss_at(
        self, target: Target, observation: Observation, batch: Batch, tape: Tape
    ) -> float | None:
        """The matching loss at a known input: how the audit checks the search itself.

        Called with the truth, after the attack has ended. None for attacks that do
        not minimise a matching loss.
        """
        return None
