"""Runs attacks on clients that hold token ids, checks their claims, scores them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from privaudit._progress import labelled
from privaudit._runner import Clock
from privaudit.attacks import TokenAttack
from privaudit.config import Budget
from privaudit.exposure import ClientStep
from privaudit.metrics import TOKEN_METRICS
from privaudit.result import AttackRecord, FormNote, LeakRecord, SampleOutcome
from privaudit.types import TokenBatch, TokenReconstruction, TokenTarget
from privaudit.verdict import AttackEvidence, AttackState, Score

_WORST_FIRST: tuple[AttackState, ...] = (
    "failed", "stopped", "plateau", "converged", "exact", "skipped",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class TokenClient:
    """One client: what it holds, how its step is made, its place among the samples.

    The step is made when it is looked at, the same each time: embeddings are large.
    """

    batch: TokenBatch
    make: Callable[[], ClientStep]
    rows: range


@dataclass(frozen=True, eq=False)
class TokenRun:
    """One attack on every client."""

    attack: TokenAttack
    outcomes: Sequence[TokenReconstruction]
    seconds: float

    @property
    def state(self) -> AttackState:
        """The weakest end over all clients; skipped only where all were."""
        states = {o.state for o in self.outcomes}
        return next((s for s in _WORST_FIRST if s in states), "skipped")

    @property
    def all_exact(self) -> bool:
        """True when every client was recovered exactly."""
        return all(o.state == "exact" for o in self.outcomes)

    @property
    def reason(self) -> str:
        """Why it ended as it did: of the first client that decides the state."""
        return next((o.reason for o in self.outcomes if o.state == self.state), "")


def run_tokens(
    attack: TokenAttack,
    target: TokenTarget,
    clients: Sequence[TokenClient],
    *,
    clock: Clock,
    seed: int,
) -> TokenRun:
    """Attack every client in turn; a client that breaks does not stop the others."""
    started = time.monotonic()
    outcomes = []
    for number, client in enumerate(clients):
        with labelled(f"{attack.name}, client {number + 1} of {len(clients)}"):
            share = clock.share(len(clients) - number)
            found = _one(attack, target, client, share, seed=seed + number)
            outcomes.append(_checked(found, client.batch))
    return TokenRun(attack, outcomes, time.monotonic() - started)


def _one(
    attack: TokenAttack,
    target: TokenTarget,
    client: TokenClient,
    share: Budget | None,
    *,
    seed: int,
) -> TokenReconstruction:
    if share is None:
        reason = "no time was left for this client"
        return TokenReconstruction(None, None, "stopped", reason)
    generator = torch.Generator().manual_seed(seed)
    try:
        observation = client.make().observation
        return attack.run(target, observation, budget=share, generator=generator)
    except Exception as error:  # noqa: BLE001  a plug-in may break in any way
        first = next(iter(str(error).splitlines()), "")
        reason = f"{type(error).__name__}: {first}"
        return TokenReconstruction(None, None, "failed", reason)


def _checked(outcome: TokenReconstruction, truth: TokenBatch) -> TokenReconstruction:
    """Hold a claim against the client's ids. What was found keeps its score."""
    sequence = outcome.sequence
    if outcome.state not in _WORST_FIRST:
        reason = f"{outcome.state!r} is no way for an attack to end"
        return replace(outcome, state="failed", reason=reason)
    if sequence is not None and sequence.shape != truth.ids.shape:
        reason = f"shape {tuple(sequence.shape)}, expected {tuple(truth.ids.shape)}"
        return replace(outcome, sequence=None, state="failed", reason=reason)
    found = bool(outcome.leaked) or sequence is not None
    if outcome.state == "skipped" and found:
        return replace(outcome, state="failed", reason="says skipped, gives ids")
    if outcome.state in ("exact", "converged", "plateau") and not found:
        reason = f"says {outcome.state}, but gives no id"
        return replace(outcome, state="failed", reason=reason)
    if outcome.state != "exact":
        return outcome
    if sequence is None:
        reason = "says exact, but gives no order"
        return replace(outcome, state="plateau", reason=reason)
    wrong = (sequence.to(truth.ids) != truth.ids) & truth.counted
    if bool(wrong.any()):
        reason = f"claims an exact match; {int(wrong.sum())} positions differ"
        return replace(outcome, state="plateau", reason=reason)
    return outcome


def token_record(
    ran: TokenRun, clients: Sequence[TokenClient], *, seed: int
) -> AttackRecord:
    """Score one attack on all samples, and write down what it found."""
    pairs = list(zip(clients, ran.outcomes, strict=True))
    return AttackRecord(
        evidence=AttackEvidence(
            label=ran.attack.name,
            state=ran.state,
            required=ran.attack.required,
            skip="not applicable" if ran.state == "skipped" else None,
            reason=ran.reason,
            scores=_scores(pairs),
        ),
        title=ran.attack.title,
        summary=(type(ran.attack).__doc__ or "").strip().split("\n\n")[0],
        settings=ran.attack.settings(),
        settings_given=ran.attack.settings_given(),
        seconds=ran.seconds,
        device=str(clients[0].batch.ids.device),
        seed=seed,
        outcomes=[_outcome(o) for c, o in pairs for _ in range(len(c.batch))],
        tokens=[row for c, o in pairs for row in _rows(o, len(c.batch))],
        leaked_ids=[
            LeakRecord(
                client=number,
                table=leak.table,
                positions=list(leak.positions),
                ids=list(leak.ids),
            )
            for number, (_, o) in enumerate(pairs)
            for leak in o.leaked or ()
        ],
    )


def _scores(
    pairs: Sequence[tuple[TokenClient, TokenReconstruction]],
) -> dict[str, list[Score]]:
    """Every metric on tokens; nothing where no client gave anything."""
    found = {
        name: [s for client, o in pairs for s in cls().score(client.batch, o)]
        for name, cls in TOKEN_METRICS.items()
    }
    anything = any(o.leaked or o.sequence is not None for _, o in pairs)
    return found if anything else {}


def _outcome(outcome: TokenReconstruction) -> SampleOutcome:
    return SampleOutcome(
        state=outcome.state,
        form=outcome.form,
        residual=outcome.residual,
        note=outcome.reason,
        forms=[
            FormNote(form=f.form, applied=f.applied, reason=f.reason)
            for f in outcome.forms
        ],
    )


def _rows(outcome: TokenReconstruction, size: int) -> list[list[int | None] | None]:
    if outcome.sequence is None:
        return [None] * size
    return [[i if i >= 0 else None for i in row] for row in outcome.sequence.tolist()]
