"""Runs attacks on clients, and checks what they claim. No score is made here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privaudit.attacks import Attack
from privaudit.config import Budget
from privaudit.errors import AttackError
from privaudit.exposure import ClientStep, relative_error
from privaudit.types import AttackerKnowledge, Batch, Reconstruction, Target
from privaudit.verdict import AttackState

CLAIM_TOLERANCE = 1e-2
"""A claim of exactness is refused when the client's own masks give a gradient further
off than this. Looser than the claim itself: deep networks amplify rounding."""

_SEVERITY: tuple[AttackState, ...] = (
    "failed", "stopped", "plateau", "converged", "exact", "skipped",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Client:
    """One client: what it holds, what it sent, and its place among the images."""

    batch: Batch
    step: ClientStep
    rows: range


@dataclass
class Clock:
    """The time left of an audit's budget."""

    budget: Budget
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float | None:
        """Seconds left; None without a bound."""
        if self.budget.seconds is None:
            return None
        return max(0.0, self.budget.seconds - (time.monotonic() - self.started))

    @property
    def is_up(self) -> bool:
        """True once nothing is left."""
        return self.left is not None and self.left <= 0.0

    def rest(self) -> Budget:
        """What an attack may still spend."""
        seconds = self.left
        return self.budget.model_copy(
            update={"seconds": None if seconds is None else max(seconds, 1e-3)}
        )


@dataclass(frozen=True, eq=False)
class Run:
    """One attack on every client.

    Attributes:
        attack: The attack.
        outcomes: One reconstruction per client, in order.
        seconds: Wall clock.
    """

    attack: Attack
    outcomes: Sequence[Reconstruction]
    seconds: float

    @property
    def state(self) -> AttackState:
        """The weakest end over all clients; skipped only where all were."""
        states = {o.state for o in self.outcomes}
        return next((s for s in _SEVERITY if s in states), "skipped")

    @property
    def all_exact(self) -> bool:
        """True when every client was recovered exactly."""
        return all(o.state == "exact" for o in self.outcomes)

    @property
    def reason(self) -> str:
        """Why it ended as it did: of the first client that decides the state."""
        return next((o.reason for o in self.outcomes if o.state == self.state), "")


def run(
    attack: Attack,
    target: Target,
    clients: Sequence[Client],
    *,
    labels_known: bool,
    clock: Clock,
    seed: int,
) -> Run:
    """Attack every client in turn; a client that breaks does not stop the others."""
    started = time.monotonic()
    outcomes = [
        _one(attack, target, client, labels_known, clock=clock, seed=seed + number)
        for number, client in enumerate(clients)
    ]
    return Run(attack, outcomes, time.monotonic() - started)


def _one(
    attack: Attack,
    target: Target,
    client: Client,
    labels_known: bool,
    *,
    clock: Clock,
    seed: int,
) -> Reconstruction:
    if clock.is_up:
        return Reconstruction(None, "stopped", "no time was left for this client")
    known = AttackerKnowledge(client.batch.labels if labels_known else None)
    aimed = Target(target.model, target.exposure, known, target.memory)
    generator = torch.Generator().manual_seed(seed)
    try:
        outcome = attack.run(
            aimed, client.step.observation, budget=clock.rest(), generator=generator
        )
        return _checked(outcome, target, client)
    except (AttackError, RuntimeError, ValueError, ArithmeticError) as error:
        text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return Reconstruction(None, "failed", text)


def _checked(outcome: Reconstruction, target: Target, client: Client) -> Reconstruction:
    """Hold a claim of exactness against the client's real masks."""
    images = outcome.images
    if images is None:
        return outcome
    if images.shape != client.batch.images.shape or not bool(images.isfinite().all()):
        return Reconstruction(
            None, "failed", "numerical: the reconstruction is not a finite image",
            forms=outcome.forms,
        )  # fmt: skip
    if outcome.state != "exact":
        return outcome
    apart = observation_error(target, client, images)
    if apart <= CLAIM_TOLERANCE:
        return outcome
    return Reconstruction(
        images,
        "failed",
        f"claims an exact match, but the client's step on it gives another gradient "
        f"(relative error {apart:.1e})",
        form=outcome.form,
        residual=apart,
        forms=outcome.forms,
        labels=outcome.labels,
        notes=outcome.notes,
    )


def observation_error(target: Target, client: Client, images: Tensor) -> float:
    """Relative error of the gradient of ``images`` under the client's real masks."""
    batch = Batch(images.to(client.batch.images), client.batch.labels)
    guess = target.exposure.gradient(target.model, batch, tape=client.step.tape)
    return relative_error(guess, client.step.observation.gradients)
