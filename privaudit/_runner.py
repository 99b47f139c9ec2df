"""Runs attacks on clients, and checks what they claim. No score is made here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from privaudit._align import assignment
from privaudit._clock import Clock as Clock
from privaudit._kept import Finished
from privaudit._nearer import SAME_IMAGE_MSE, nearer
from privaudit._progress import labelled
from privaudit.attacks import Attack, FeatureAttack
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.exposure import relative_error, shared_parameters
from privaudit.session.clients import AnyClient as AnyClient
from privaudit.session.clients import Client as Client
from privaudit.session.clients import Subject as Subject
from privaudit.session.clients import WaitingClient as WaitingClient
from privaudit.types import AttackerKnowledge, Batch, Reconstruction, Target
from privaudit.verdict import AttackState, above_noise

CLAIM_TOLERANCE = 1e-2
"""A claim of exactness is refused when the client's own masks give a gradient further
off than this. Looser than the claim itself: deep networks amplify rounding."""

RANGE_TOLERANCE = 1e-2
"""Rounding may pass black and white by so much; beyond it the range is another."""

CONVERGED = 0.01
"""Share of its way to the loss at the truth that a search may leave."""

MANY = 64
MANY_BYTES = 2**28
"""Clients that are attacked at once, and bytes of gradient that they may have."""

STATES: tuple[AttackState, ...] = (
    "failed", "stopped", "plateau", "converged", "exact", "skipped",
)  # fmt: skip


AnyAttack = TypeVar("AnyAttack", Attack, FeatureAttack)


@dataclass(frozen=True)
class Stance:
    """How an attacker stands to a defense.

    Attributes:
        defense: What was sent went through it, stated or found; None: nothing.
        countermeasures: What the attacker does about it, in order.
        notes: What that came to, with its numbers; of the first client.
    """

    defense: str | None = None
    countermeasures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


NAIVE = Stance()


@dataclass(frozen=True, eq=False)
class Run(Generic[AnyAttack]):
    """One attack on every client, or on every request of a split model.

    Attributes:
        attack: The attack.
        outcomes: One reconstruction per client, in order.
        seconds: Wall clock.
        stance: What it knew of a defense.
    """

    attack: AnyAttack
    outcomes: Sequence[Reconstruction]
    seconds: float
    stance: Stance = NAIVE

    @property
    def label(self) -> str:
        """The attack, and what it did about a defense: ``drag+reorder_tokens``."""
        return "+".join([self.attack.name, *self.stance.countermeasures])

    @property
    def state(self) -> AttackState:
        """The weakest end over all clients; skipped only where all were."""
        states = {o.state for o in self.outcomes}
        return next((s for s in STATES if s in states), "skipped")

    @property
    def all_exact(self) -> bool:
        """True when every client was recovered exactly."""
        return all(o.state == "exact" for o in self.outcomes)

    @property
    def reason(self) -> str:
        """Why it ended as it did: of the first client that decides the state."""
        return next((o.reason for o in self.outcomes if o.state == self.state), "")


AnyRun = Run[Attack] | Run[FeatureAttack]
Look = Callable[[Target, Client], tuple[Target, Client]]
"""What an attacker's countermeasures make of one client."""


def run(
    attack: Attack,
    target: Target,
    clients: Sequence[AnyClient],
    *,
    labels_known: bool,
    clock: Clock,
    seed: int,
    look: Look | None = None,
) -> Run[Attack]:
    """Attack every client; one that breaks does not stop the others.

    Together where the attack can, as many as memory allows; with ``look`` one by one.
    """
    started, spent = time.monotonic(), clock.spent
    outcomes: list[Reconstruction] = []
    broke: tuple[str, ...] = ()
    alone = clock.kept is not None or look is not None
    size = 1 if alone else _together(attack, target, len(clients))
    while len(outcomes) < len(clients):
        number = len(outcomes)
        known = clock.recall(attack, number)
        if known is not None:
            batch = clients[number].batch
            labels = batch.labels if labels_known else None
            known.learn_again(target, batch, labels, seed=seed + number)
            outcomes.append(known.outcome)
            continue
        group = clients[number : number + size]
        name = f"{attack.name}, client {number + 1}"
        name += f" to {number + len(group)}" if len(group) > 1 else ""
        began, learnt = time.monotonic(), set(target.memory)
        share = clock.share(math.ceil((len(clients) - number) / size))
        with labelled(f"{name} of {len(clients)}"):
            try:
                held = [c.held() for c in group]
                found = _some(
                    attack, target, held, labels_known, share=share, seed=seed + number,
                    look=look,
                )  # fmt: skip
            except _BrokeTogetherError as error:
                found, broke = None, (f"clients together broke: {error}",)
            except KeyboardInterrupt:
                found = [Reconstruction(None, "stopped", INTERRUPTED)] * len(group)
        if found is None:
            size = 1
            continue
        outcomes += [replace(o, notes=(*o.notes, *broke)) for o in found]
        if any(o.reason == INTERRUPTED for o in found):
            clock.cancel()
        elif share is not None and len(found) == 1:
            new = tuple(sorted(target.memory.keys() - learnt))
            done = Finished(found[0], time.monotonic() - began, new)
            clock.keep(attack, number, done)
    seconds = time.monotonic() - started + clock.spent - spent
    return Run(attack, outcomes, seconds)


class _BrokeTogetherError(Exception):
    """Clients at once broke something: they go one at a time, and it is noted."""


def _together(attack: Attack, target: Target, clients: int) -> int:
    """How many clients may go through the attack at once."""
    if clients < 2 or type(attack).run_many is Attack.run_many:
        return 1
    shared = shared_parameters(target.model).values()
    each = sum(p.numel() * p.element_size() for p in shared)
    return max(1, min(clients, MANY, MANY_BYTES // max(1, each)))


def _some(
    attack: Attack,
    target: Target,
    clients: Sequence[Client],
    labels_known: bool,
    *,
    share: Budget | None,
    seed: int,
    look: Look | None,
) -> list[Reconstruction] | None:
    """The outcomes of some clients; None where they must go one at a time."""
    if len(clients) == 1 or share is None:
        return [
            _one(attack, target, c, labels_known, share=share, seed=seed + i, look=look)
            for i, c in enumerate(clients)
        ]
    if attack.diagnostic and not all(c.masks_known for c in clients):
        return None
    try:
        found = attack.run_many(
            [_aimed(attack, target, c, labels_known) for c in clients],
            [c.step.observation for c in clients],
            budget=share,
            generators=[
                torch.Generator().manual_seed(seed + i) for i in range(len(clients))
            ],
        )
        if found is None:
            return None
        return [
            _counted(attack, o, target, c) for o, c in zip(found, clients, strict=True)
        ]
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise _BrokeTogetherError(f"{type(error).__name__}: {first}") from error


def _aimed(
    attack: Attack, target: Target, client: Client, labels_known: bool
) -> Target:
    """The target as the attack may see it for this client."""
    known = AttackerKnowledge(
        client.batch.labels if labels_known else None,
        client.step.tape if attack.diagnostic else None,
        target.knowledge.joint,
    )
    return replace(target, knowledge=known)


def _one(
    attack: Attack,
    target: Target,
    client: Client,
    labels_known: bool,
    *,
    share: Budget | None,
    seed: int,
    look: Look | None,
) -> Reconstruction:
    if share is None:
        return Reconstruction(None, "stopped", "no time was left for this client")
    if attack.diagnostic and not client.masks_known:
        return Reconstruction(None, "skipped", "the client's masks were not recorded")
    aimed = _aimed(attack, target, client, labels_known)
    generator = torch.Generator().manual_seed(seed)
    try:
        if look is not None:
            aimed, client = look(aimed, client)
            target = aimed
        outcome = attack.run(
            aimed, client.step.observation, budget=share, generator=generator
        )
        return _counted(attack, outcome, target, client)
    except Exception as error:  # noqa: BLE001  a plug-in may break in any way
        first = next(iter(str(error).splitlines()), "")
        return Reconstruction(None, "failed", f"{type(error).__name__}: {first}")


def _counted(
    attack: Attack, outcome: Reconstruction, target: Target, client: Client
) -> Reconstruction:
    """The outcome as an audit counts it, held against what it knows."""
    outcome = nearer(outcome, client.batch)
    return _checked(_converged(attack, outcome, target, client), target, client)


def _converged(
    attack: Attack, outcome: Reconstruction, target: Target, client: Client
) -> Reconstruction:
    """Tell "converged" from "plateau" by the matching loss at the truth."""
    search, truth = outcome.search, None
    if search is not None and client.masks_known:
        truth = attack.loss_at(
            target, client.step.observation, client.batch, client.step.tape
        )
    if search is None or truth is None:
        # A claim that nothing can be held against is worth no more than an end.
        claimed = outcome.state == "converged"
        return replace(outcome, state="plateau") if claimed else outcome
    state = outcome.state
    gap = CONVERGED * (search.loss_start - truth)
    if state == "plateau" and search.loss_final - truth <= gap:
        state = "converged"
    return replace(outcome, state=state, search=replace(search, loss_truth=truth))


def _checked(outcome: Reconstruction, target: Target, client: Client) -> Reconstruction:
    """Refuse what is no result, and hold a claim of exactness against the client."""
    images = outcome.images
    if outcome.state not in STATES:
        reason = f"{outcome.state!r} is no way for an attack to end"
        return replace(outcome, images=None, state="failed", reason=reason)
    if images is None:
        if outcome.state not in ("exact", "converged", "plateau"):
            return outcome
        reason = f"says {outcome.state}, but gives no image"
        return replace(outcome, state="failed", reason=reason)
    fault = fault_of(images, client.batch.images)
    if fault is not None:
        return replace(outcome, images=None, state="failed", reason=fault)
    if outcome.state == "skipped":
        return replace(outcome, state="failed", reason="says skipped, gives images")
    if not any(bool(g.any()) for g in client.step.observation.gradients.values()):
        reason = "no information: the whole gradient is zero, whatever the image"
        return replace(outcome, state="failed", reason=reason)
    return _verified(outcome, target, client) if outcome.state == "exact" else outcome


def fault_of(images: Tensor, wanted: Tensor) -> str | None:
    """Why ``images`` are not pictures of the size asked for."""
    if images.shape != wanted.shape:
        return f"shape {tuple(images.shape)}, but the client's is {tuple(wanted.shape)}"
    if not images.is_floating_point() or not bool(images.isfinite().all()):
        return "numerical: the reconstruction is not a finite image"
    low, high = float(images.min()), float(images.max())
    if low < -RANGE_TOLERANCE or high > 1 + RANGE_TOLERANCE:
        return f"pixels are in [{low:.3g}, {high:.3g}], not in [0, 1]"
    return None


def _verified(
    outcome: Reconstruction, target: Target, client: Client
) -> Reconstruction:
    """Exact means: the client's own masks give the gradient, and no other image does.

    Where another image than the client's matches, the observation does not determine
    the image. That is no evidence of anything, however well it matches.
    """
    images = outcome.images
    if not client.masks_known:
        return _verified_by_image(outcome, client)
    apart = observation_error(target, client, images) if images is not None else 0.0
    defended = client.step.undefended is not None
    tolerance = above_noise(CLAIM_TOLERANCE, client.noise_floor)
    if apart > tolerance and outcome.search is not None:
        # Masks of its own making explain the gradient as well as the client's do.
        return replace(outcome, state=_short_of_exact(outcome), residual=apart)
    if images is not None and apart > tolerance and defended:
        reason = (
            f"{outcome.reason}; matches what was sent, not what the client computed "
            f"(relative error {apart:.1e})"
        )
        return replace(outcome, state="plateau", reason=reason, residual=apart)
    if images is None or apart > tolerance:
        reason = (
            "claims an exact match, but the client's step on it gives another gradient "
            f"(relative error {apart:.1e})"
        )
        return replace(outcome, state="failed", reason=reason, residual=apart)
    if _furthest(client.batch.images, images) > SAME_IMAGE_MSE:
        reason = (
            "matches the observation, but so does the client's own image, which is "
            "another one: the gradient does not determine the image"
        )
        return replace(outcome, state="failed", reason=reason)
    return outcome


def _short_of_exact(outcome: Reconstruction) -> AttackState:
    """Converged only where the loss at the truth could be held against the search."""
    search = outcome.search
    known = search is not None and search.loss_truth is not None
    return "converged" if known else "plateau"


def _verified_by_image(outcome: Reconstruction, client: Client) -> Reconstruction:
    """Without the client's masks, exact means that it is the client's image."""
    images = outcome.images
    if images is not None and _furthest(client.batch.images, images) <= SAME_IMAGE_MSE:
        return outcome
    if outcome.search is not None:
        # Masks of its own making explain the gradient as well as the client's do.
        return replace(outcome, state=_short_of_exact(outcome))
    reason = "claims an exact match, but it is another image than the client's"
    return replace(outcome, state="failed", reason=reason)


def _furthest(truth: Tensor, guess: Tensor) -> float:
    """Mean squared error of the worst image to its nearest guess, in any order."""
    flat = guess.to(truth).flatten(1)
    nearest = [(flat - t).square().mean(1).min() for t in truth.flatten(1)]
    return float(torch.stack(nearest).max())


def observation_error(target: Target, client: Client, images: Tensor) -> float:
    """Relative error of the gradient of ``images`` under the client's real masks.

    Against the client's own gradient, whatever a defense then made of it.
    A batch comes back in any order; masks and labels belong to the client's.
    """
    guess_of = assignment(client.batch.images, images)
    batch = Batch(images[guess_of].to(client.batch.images), client.batch.labels)
    guess = target.exposure.gradient(target.model, batch, tape=client.step.tape)
    return relative_error(guess, client.step.clean.gradients)
