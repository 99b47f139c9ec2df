"""Positive control of an audit on token ids: a case that the attack must solve."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from privaudit._controls import SHARE
from privaudit._pixels import Normalisation
from privaudit._runner import Clock
from privaudit._token_runner import TokenClient, TokenRun, run_tokens
from privaudit.attacks import TokenAttack
from privaudit.config import Budget
from privaudit.errors import PrivauditError
from privaudit.exposure import GradientExposure
from privaudit.inventory.embeddings import Embedding, own_ids, remembered
from privaudit.metrics import TokenSetRecall
from privaudit.result import PositiveControl
from privaudit.types import TokenTarget

NEEDED = 1.0
"""Recall of the ids: the attack is a closed form, so nothing less will do."""
_VOCABULARY, _POSITIONS = 50, 5
_LEAST = Budget(seconds=1)
"""The built-in case takes milliseconds: that much is always left."""


@dataclass(frozen=True, eq=False)
class _Case:
    """A model whose leak is certain, and ids that it takes."""

    name: str
    target: TokenTarget
    ids: torch.Tensor


def token_control(
    attacks: Sequence[TokenAttack],
    target: TokenTarget,
    embeddings: Sequence[Embedding],
    positions: int,
    *,
    budget: Budget,
    seed: int,
) -> PositiveControl:
    """Every attack must find the ids of a step of our own, dropout off, one sequence.

    Args:
        attacks: The ones that ran in the audit.
        target: The user's model and exposure.
        embeddings: What takes the ids.
        positions: How many ids a sequence has.
        budget: Of the audit; a tenth of its seconds may be spent here.
        seed: Of the ids and of the built-in model.
    """
    started = time.monotonic()
    generator = torch.Generator().manual_seed(seed)
    device = next(target.model.parameters()).device
    ids = own_ids(embeddings, (1, positions), generator).to(device)
    undefended = replace(target.exposure, dropout=False)
    memory = remembered(embeddings, positions)
    own = replace(target, exposure=undefended, memory=memory)
    cases = [
        _Case("the model without dropout", own, ids),
        _built_in(generator, device),
    ]
    clock = Clock(
        budget.model_copy(update={"seconds": (budget.seconds or 600) * SHARE})
    )
    told: list[str] = []
    solved: list[str] = []
    for attack in attacks:
        case = _first_solved(attack, cases, clock, told)
        solved += [] if case is None else [case]
    return PositiveControl(
        passed=bool(attacks) and len(solved) == len(attacks),
        model=", ".join(dict.fromkeys(solved)) or "none",
        ssim=None,
        limit=NEEDED,
        seconds=time.monotonic() - started,
        detail="; ".join(told) or "no attack applied",
    )


def _first_solved(
    attack: TokenAttack, cases: Sequence[_Case], clock: Clock, told: list[str]
) -> str | None:
    for number, case in enumerate(cases):
        part = clock.share(len(cases) - number)
        try:
            ran, found = _try(attack, case, Clock(part or _LEAST))
        except PrivauditError as error:
            told.append(f"{attack.name} on {case.name}: {error}")
            continue
        shown = "no ids" if found is None else f"token set recall {found:.3f}"
        told.append(f"{attack.name} on {case.name}: {ran.state}, {shown}")
        if found is not None and found >= NEEDED:
            return case.name
    return None


def _try(
    attack: TokenAttack, case: _Case, clock: Clock
) -> tuple[TokenRun, float | None]:
    target = case.target
    batch = target.batch(case.ids)
    client = TokenClient(
        batch,
        lambda: target.exposure.observe(target.model, batch, seed=0),
        range(1),
    )
    ran = run_tokens(attack, target, [client], clock=clock, seed=0)
    return ran, TokenSetRecall().score(batch, ran.outcomes[0])[0].value


def _built_in(generator: torch.Generator, device: torch.device) -> _Case:
    """An embedding, flattened, and a linear layer, of a generator of their own."""
    model = nn.Sequential(
        nn.Embedding(_VOCABULARY, 8), nn.Flatten(), nn.Linear(8 * _POSITIONS, 3)
    )
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
    ids = torch.randint(_VOCABULARY, (1, _POSITIONS), generator=generator)
    target = TokenTarget(model.to(device), GradientExposure(Normalisation()))
    return _Case("a built-in model", target, ids.to(device))
