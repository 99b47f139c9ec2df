"""What an audit would do, said beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from privaudit._ladder import FEATURES, GRADIENT
from privaudit.config import Budget

if TYPE_CHECKING:
    from privaudit._session import Session
    from privaudit.attacks import Attack, FeatureAttack
    from privaudit.session.features import FeatureSession


class PlannedAttack(BaseModel):
    """One rung of the ladder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    will_run: bool
    reason: str


class Plan(BaseModel):
    """Attacks, seconds, memory, and what will be missing from the verdict.

    ``seconds`` is extrapolated from one measured step: one gradient per client to
    make, one to verify. ``memory_gib`` is a lower bound: weights, their snapshot,
    and two gradients; activations come on top.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: int
    images: int
    attacks: list[PlannedAttack]
    seconds: float
    budget_seconds: float | None
    memory_gib: float
    not_available: list[str]


def make_plan(session: Session, attacks: Sequence[Attack], budget: Budget) -> Plan:
    """Extrapolate from the one step that the session has made."""
    missing = GRADIENT.absent(attacks)
    listed = [
        PlannedAttack(label=a.name, will_run=True, reason="in the ladder")
        for a in attacks
    ]
    listed += [
        PlannedAttack(label=n, will_run=False, reason=r) for n, r in missing.items()
    ]
    clients = session.client_count
    weights = 4 * session.inventory.parameters
    gradient = 4 * session.inventory.trainable
    return Plan(
        clients=clients,
        images=len(session.sample.images),
        attacks=listed,
        seconds=session.step_seconds * (2 * clients + 4),
        budget_seconds=budget.seconds,
        memory_gib=(2 * weights + 2 * gradient) / 2**30,
        not_available=[f"{n}: {r}" for n, r in missing.items()],
    )


def plan_features(session: FeatureSession, attacks: Sequence[FeatureAttack]) -> Plan:
    """What an audit at a cut would do: searches end by themselves or by the budget."""
    missing = FEATURES.absent(attacks)
    listed = [
        PlannedAttack(label=a.name, will_run=True, reason="in the ladder")
        for a in attacks
    ]
    listed += [
        PlannedAttack(label=n, will_run=False, reason=r) for n, r in missing.items()
    ]
    images = len(session.sample.images)
    sent = images * session.split.bytes_per_image
    return Plan(
        clients=images,
        images=images,
        attacks=listed,
        seconds=session.config.budget.seconds or float("inf"),
        budget_seconds=session.config.budget.seconds,
        memory_gib=(2 * 4 * session.inventory.parameters + 2 * sent) / 2**30,
        not_available=[f"{n}: {r}" for n, r in missing.items()],
    )
