"""What an attack on token ids is: gradient in, ids out, the truth never seen."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin
from privaudit.config import Budget

if TYPE_CHECKING:
    import torch

    from privaudit.types import Observation, TokenReconstruction, TokenTarget


class TokenAttack(Plugin):
    """Base of all attacks on models that take integer ids."""

    title: ClassVar[str]
    """For readers of the report."""
    source: ClassVar[str]
    """Paper, as "Surname year"."""
    required: ClassVar[bool] = True
    """True when a verdict of "no leak found" needs it wherever it applies."""

    @classmethod
    @abstractmethod
    def tiny(cls) -> TokenAttack:
        """An instance that tests can run in a second."""

    @abstractmethod
    def run(
        self,
        target: TokenTarget,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> TokenReconstruction:
        """Find the ids that the client held, and their order where it can be had.

        Args:
            target: Model, exposure and what the attacker knows; never the truth.
            observation: What the client sent.
            budget: Seconds still to be spent.
            generator: Source of all randomness, on the CPU.
        """
