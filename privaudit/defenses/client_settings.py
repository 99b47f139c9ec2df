"""What a client can do without any defense: more images a step, more steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privaudit.defenses.base import GRADIENT, ClientStepContext, Defense

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privaudit.config import Client


class LargerBatch(Defense):
    """Each step sums the gradients of more images."""

    name: ClassVar[str] = "larger_batch"
    title: ClassVar[str] = "Larger batch"
    source: ClassVar[str] = "Geiping 2020"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    does_not_protect: ClassVar[str] = (
        "Batches through dropout on the first layers: their masks tell the images "
        "apart, and each comes back exactly."
    )
    known_to_attacks: ClassVar[bool] = True

    batch_size: int = Field(default=8, ge=1)
    """B, images in one step."""

    def changed_client(self, client: Client) -> Client:
        """See :class:`~privaudit.defenses.Defense`."""
        return client.model_copy(update={"batch_size": self.batch_size})

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Nothing: the step itself is another."""
        return dict(gradients)


class MoreLocalSteps(Defense):
    """Several steps are made before anything is sent, as in FedAvg."""

    name: ClassVar[str] = "more_local_steps"
    title: ClassVar[str] = "More local steps"
    source: ClassVar[str] = "McMahan 2017"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    does_not_protect: ClassVar[str] = (
        "What an attacker gets who simulates the steps: with a small learning rate "
        "they are nearly one step on a larger batch."
    )
    known_to_attacks: ClassVar[bool] = True

    local_steps: int = Field(default=4, ge=1)
    """Steps before sending."""
    lr: float = Field(default=0.01, gt=0)
    """Learning rate of the local steps."""

    def changed_client(self, client: Client) -> Client:
        """See :class:`~privaudit.defenses.Defense`."""
        own = {"local_steps": self.local_steps, "lr": self.lr}
        return client.model_copy(update=own)

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Nothing: the steps themselves are others."""
        return dict(gradients)
