"""What a countermeasure is: what the attacker does about a defense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin

if TYPE_CHECKING:
    import torch

    from privaudit.defenses import Detection
    from privaudit.types import (
        FeatureObservation,
        FeatureTarget,
        Observation,
        Target,
    )


@dataclass(frozen=True, eq=False)
class SeenFeatures:
    """How an attacker on features looks at what it got.

    Attributes:
        target: Model and cut, as every attack is then given them.
        observation: What was sent, one row an image.
        notes: What was done, with its numbers, for the report.
    """

    target: FeatureTarget
    observation: FeatureObservation
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class SeenGradient:
    """How an attacker on gradients looks at what it got.

    Attributes:
        target: Model, exposure and knowledge, as every attack is then given them.
        observation: What one client sent.
        notes: What was done, with its numbers, for the report.
    """

    target: Target
    observation: Observation
    notes: tuple[str, ...] = ()


class Countermeasure(Plugin):
    """Base of all countermeasures. A subclass changes what attacks get to see.

    Attacks do not know of it: they match what they are given. So it works with every
    attack of its exposure.
    """

    title: ClassVar[str]
    """For readers of the report."""
    source: ClassVar[str]
    """Paper, as "Surname year"."""
    against: ClassVar[frozenset[str]]
    """Names of the defenses that it answers."""
    exposures: ClassVar[frozenset[str]]
    """``features``, ``gradient``, or both."""
    rank: ClassVar[int] = 50
    """Of several the lower goes first: what was done last by the defender is undone
    first."""
    by_default: ClassVar[bool] = True
    """False: only where the user names it."""

    @classmethod
    def tiny(cls) -> Countermeasure:
        """An instance that contract tests can run in a second."""
        return cls()

    def see_features(
        self, seen: SeenFeatures, found: Detection, generator: torch.Generator
    ) -> SeenFeatures:
        """What attacks get instead of ``seen``.

        Args:
            seen: All images of an audit together.
            found: The defense that it answers, with what is known of its settings.
            generator: Source of all randomness, on the CPU.
        """
        return seen

    def see_gradient(
        self, seen: SeenGradient, found: Detection, generator: torch.Generator
    ) -> SeenGradient:
        """What attacks get instead of ``seen``, for one client.

        Args:
            seen: What the client sent.
            found: The defense that it answers, with what is known of its settings.
            generator: Source of all randomness, on the CPU.
        """
        return seen
