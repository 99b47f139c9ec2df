"""What an attack on features is: features in, images out, the truth never seen."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin
from privaudit.config import Budget

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction


class FeatureAttack(Plugin):
    """Base of all attacks on what a cut model sends."""

    title: ClassVar[str]
    """For readers of the report."""
    source: ClassVar[str]
    """Paper, as "Surname year"."""
    required: ClassVar[bool] = True
    """True when a verdict of "no leak found" needs it wherever it applies."""
    diagnostic: ClassVar[bool] = False
    """True when it is given what a real attacker lacks; it then never decides."""

    reads_priors: ClassVar[frozenset[str]] = frozenset()
    """Names in ``target.priors`` that it uses; any other name is refused."""
    portable_priors: ClassVar[frozenset[str]] = frozenset()
    """Those of them that serve any model: the positive control gets these."""

    @classmethod
    @abstractmethod
    def tiny(cls) -> FeatureAttack:
        """An instance that contract tests can run in a second."""

    @abstractmethod
    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """Reconstruct the images that the device looked at.

        All images of the observation are searched together; what one gets does not
        depend on the others.

        Args:
            target: Model, cut and what the attacker has; never the truth.
            observation: What the device sent.
            budget: Seconds, iterations, restarts still to be spent.
            generator: Source of all randomness, on the CPU.

        Returns:
            One an image, in order, each with images of shape (1, C, H, W) and a state
            and a search of its own: one that got stuck must not hide in a mean.
        """

    def control_image(
        self,
        target: FeatureTarget,
        image_shape: tuple[int, int, int],
        generator: torch.Generator,
    ) -> Tensor | None:
        """An image that it must be able to find where features tell everything.

        Args:
            target: Of the positive control.
            image_shape: (channels, height, width).
            generator: Source of all randomness.

        Returns:
            (1, C, H, W) in [0, 1]; None: any photograph will do.
        """
        return None

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float] | None:
        """The matching loss at known images, one each: how the audit checks a search.

        Called with the truth, after the attack has ended. None for attacks that do
        not minimise a matching loss.
        """
        return None
