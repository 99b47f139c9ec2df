"""What a client's step leaves behind, and what defenses make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privaudit.exposure.local_steps import images_of
from privaudit.exposure.parameters import require_finite
from privaudit.tape import Tape
from privaudit.types import AnyBatch, Observation

if TYPE_CHECKING:
    from privaudit.defenses import Defense
    from privaudit.exposure.gradient import GradientExposure


@dataclass(frozen=True, eq=False)
class ClientStep:
    """One step, or all, as the client knows it. Attackers get ``observation`` only.

    Attributes:
        observation: What is sent.
        tape: The masks and noise that the client drew.
        logits: (batch, classes) of the first step, detached; None when a training step
            hides them.
        loss: Value of the training loss in the first step.
        autocast: What autocast was seen to cast to; None: it was off.
        undefended: What would be sent without defenses; None: there are none.
    """

    observation: Observation
    tape: Tape
    logits: Tensor | None
    loss: float
    autocast: torch.dtype | None = None
    undefended: Observation | None = None

    @property
    def clean(self) -> Observation:
        """What the step gives before any defense."""
        return self.undefended or self.observation


def defended(
    step: ClientStep,
    defenses: Sequence[Defense],
    *,
    exposure: GradientExposure,
    model: nn.Module,
    batch: AnyBatch,
    seed: int,
) -> ClientStep:
    """The step with what defenses leave of its gradient.

    Args:
        step: As the client made it.
        defenses: In the order in which they act.
        exposure: That made it.
        model: The client's.
        batch: What the client holds: images.
        seed: Of the defenses' draws.

    Raises:
        ConfigError: A defense that cannot act on it.
        UnsupportedModelError: What it leaves is not finite.
    """
    if not defenses:
        return step
    from privaudit.defenses import ClientStepContext

    draws = torch.Generator().manual_seed(seed)
    context = ClientStepContext(exposure, model, images_of(batch), step.tape)
    sent: Mapping[str, Tensor] = step.clean.gradients
    for defense in defenses:
        sent = defense.apply_gradient(sent, context, draws)
        require_finite(sent)
    seen = replace(step.clean, gradients=sent)
    return replace(step, observation=seen, undefended=step.clean)
