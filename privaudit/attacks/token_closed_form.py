"""``token_closed_form``: the ids of a step out of its gradient, no optimiser."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from privaudit.attacks._token_base import TokenAttack
from privaudit.attacks._token_forms import UNKNOWN, TokenAttempt, TokenForm
from privaudit.attacks._token_linear import flattened, row_space
from privaudit.attacks._token_position import position_embedding
from privaudit.attacks._token_rows import embedding_rows, ids_by_position, single_rows
from privaudit.attacks._token_scene import TokenScene, scene_of
from privaudit.attacks._token_standout import standing_out
from privaudit.attacks._token_table import OutOfTimeError
from privaudit.attacks._token_tied import tied_embedding
from privaudit.types import AttackState, FormOutcome, LeakedIds, TokenReconstruction

if TYPE_CHECKING:
    import torch

    from privaudit.config import Budget
    from privaudit.types import Observation, TokenTarget

_ORDER: tuple[TokenForm, ...] = (
    single_rows, position_embedding, tied_embedding, flattened, row_space,
)  # fmt: skip


class TokenClosedForm(TokenAttack):
    """Reads token ids straight out of the gradient where its structure allows.

    First the set of ids, from the rows of the embedding's gradient; then their order,
    for a batch of one sequence. Each form checks its own conditions and says which
    one failed.

    Source: Melis 2019 and Gupta 2022 (rows), Phong 2017 (linear layer with bias),
    Lu 2021 (position embedding, there for images), Petrov 2024 (row space).
    """

    name: ClassVar[str] = "token_closed_form"
    title: ClassVar[str] = "Token closed form"
    source: ClassVar[str] = "Melis 2019; Gupta 2022; Petrov 2024"

    @classmethod
    def tiny(cls) -> TokenClosedForm:
        """All forms: each takes milliseconds."""
        return cls()

    def run(
        self,
        target: TokenTarget,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> TokenReconstruction:
        """Try every form; see :class:`~privaudit.attacks._token_base.TokenAttack`."""
        seconds = math.inf if budget.seconds is None else budget.seconds
        deadline = time.monotonic() + seconds
        scene = scene_of(target, observation, generator, deadline=deadline)
        rows = embedding_rows(scene)
        scene = scene.knowing(ids_by_position(rows.leaked))
        attempts: list[TokenAttempt] = []
        for form in _ORDER:
            attempts.append(_try(form, scene))
            if attempts[-1].whole:
                break
        if not any(a.leaked or a.whole for a in (rows, *attempts)):
            attempts.append(_try(standing_out, scene))
        return _report(scene, rows, attempts)


def _try(form: TokenForm, scene: TokenScene) -> TokenAttempt:
    """A form that breaks must not take with it what others found; it is listed."""
    name = form.__name__.replace("_", " ")
    try:
        return form(scene)
    except OutOfTimeError as error:
        return TokenAttempt(name, False, str(error), stopped=True)
    except Exception as error:  # noqa: BLE001  models of any kind meet it
        first = next(iter(str(error).splitlines()), "")
        reason = f"broke off: {type(error).__name__}: {first}"
        return TokenAttempt(name, True, reason)


def _report(
    scene: TokenScene, rows: TokenAttempt, attempts: Sequence[TokenAttempt]
) -> TokenReconstruction:
    forms = [
        FormOutcome(a.form, bool(a.leaked) or a.sequence is not None, a.reason)
        for a in (rows, *attempts)
    ]
    ordered = [a for a in attempts if a.sequence is not None]
    best = max(ordered, key=_known, default=None)
    shown = max((rows, *attempts), key=lambda a: bool(a.leaked))
    leaked = [*shown.leaked] or ([] if best is None else _ids_of(scene, best))
    if best is None and not leaked:
        state, reason = _nothing([rows, *attempts])
        return TokenReconstruction(None, None, state, reason, forms=forms)
    if best is None or best.sequence is None:
        reason = f"{shown.reason}; neither order nor counts are known"
        return TokenReconstruction(
            leaked, None, "plateau", reason, shown.form, None, forms
        )
    return TokenReconstruction(
        leaked,
        best.sequence[None],
        "exact" if best.whole else "plateau",
        best.reason,
        best.form,
        best.residual,
        forms,
    )


def _nothing(attempts: Sequence[TokenAttempt]) -> tuple[AttackState, str]:
    """How it ended where no id was found, and why."""
    stopped = next((a for a in attempts if a.stopped), None)
    if stopped is not None:
        return "stopped", stopped.reason
    silent = next((a for a in attempts if a.applies), None)
    return (
        ("skipped", "no form applies") if silent is None else ("failed", silent.reason)
    )


def _known(attempt: TokenAttempt) -> int:
    """How many positions it found."""
    sequence = attempt.sequence
    return 0 if sequence is None else int((sequence != UNKNOWN).sum())


def _ids_of(scene: TokenScene, attempt: TokenAttempt) -> list[LeakedIds]:
    """A sequence says which ids there are, where the embedding's rows do not."""
    if attempt.sequence is None:
        return []
    found = {t: int(v) for t, v in enumerate(attempt.sequence) if int(v) != UNKNOWN}
    leaks = []
    for embedding in scene.embeddings:
        fields: dict[int, list[int]] = {}
        for position, offset in embedding.offsets.items():
            fields.setdefault(offset, []).append(position)
        for positions in fields.values():
            ids = sorted({found[t] for t in positions if t in found})
            name = embedding.weight or embedding.path
            leaks.append(LeakedIds(name, tuple(sorted(positions)), tuple(ids)))
    return [leak for leak in leaks if leak.ids]
