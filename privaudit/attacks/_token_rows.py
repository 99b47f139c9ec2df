"""The gradient of an embedding has one row per id that the client held, no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from privaudit._autograd import partials
from privaudit.attacks._token_forms import UNKNOWN, TokenAttempt, not_one
from privaudit.attacks._token_scene import TokenScene
from privaudit.exposure import shared_parameters
from privaudit.inventory.embeddings import Embedding
from privaudit.types import LeakedIds

ROWS = "rows of the embedding's gradient"
SINGLES = "one row for one position"


def embedding_rows(scene: TokenScene) -> TokenAttempt:
    """Which rows are not zero. Says nothing of order, nor of how often an id stands.

    Needs no optimisation, no label, and any batch size; dropout does not disturb it.
    Source: Melis 2019, Gupta 2022; differs in trying first whether anything else
    fills the rows.
    """
    found: list[LeakedIds] = []
    told: list[str] = []
    nothing = False
    for embedding in scene.embeddings:
        rows = _rows(scene, embedding)
        if isinstance(rows, str):
            told.append(rows)
            continue
        nothing = nothing or not len(rows)
        told.append(f"{embedding.weight}: {len(rows)} rows are not zero")
        found += _by_field(embedding, rows)
    found = [leak for leak in found if leak.ids]
    reason = "; ".join(told)
    if not found and nothing:
        return TokenAttempt(ROWS, True, f"no information: {reason}")
    return TokenAttempt(ROWS, bool(found), reason, found)


def _rows(scene: TokenScene, embedding: Embedding) -> list[int] | str:
    """The rows that are not zero, or the condition that does not hold."""
    gradient = scene.gradient(embedding.weight)
    if embedding.weight is None:
        return f"the weight of {embedding.path} is not itself a parameter"
    if gradient is None:
        return f"{embedding.weight} is not shared"
    others = _filled_by_others(scene, embedding)
    if others:
        return (
            f"{embedding.weight} is used elsewhere too, or tied to another layer: in a "
            f"step of the attacker's own {others} rows of other ids are filled"
        )
    rows = gradient.flatten(1).any(1).nonzero().flatten().tolist()
    most = scene.observation.batch_size * len(embedding.offsets)
    if len(rows) > most:
        return (
            f"{len(rows)} rows of {embedding.weight} are filled, more than the {most} "
            "ids of the step: noise, or another use of the weight"
        )
    return [int(r) for r in rows]


def _filled_by_others(scene: TokenScene, embedding: Embedding) -> int:
    """Rows that a step on known ids fills beside those of these ids.

    Tried, not guessed from names: a tied output layer, a penalty on the weights and
    whatever else writes into the gradient all show here.
    """
    parameter = shared_parameters(scene.target.model)[embedding.weight or ""]
    (gradient,) = partials(scene.own.loss, [parameter])
    if gradient is None:
        return 0
    expected = torch.zeros(len(gradient), dtype=torch.bool, device=gradient.device)
    for position, offset in embedding.offsets.items():
        expected[scene.own.ids[:, position] + offset] = True
    return int((gradient.flatten(1).any(1) & ~expected).sum())


def _by_field(embedding: Embedding, rows: Sequence[int]) -> list[LeakedIds]:
    """Positions that share their rows belong together."""
    fields: dict[int, list[int]] = {}
    for position, offset in embedding.offsets.items():
        fields.setdefault(offset, []).append(position)
    leaks = []
    for offset, positions in fields.items():
        own = embedding.rows_of(positions[0])
        ids = tuple(r - offset for r in rows if r in own)
        leaks.append(LeakedIds(embedding.weight or "", tuple(sorted(positions)), ids))
    return leaks


def ids_by_position(leaked: Sequence[LeakedIds]) -> Mapping[int, Sequence[int]]:
    """Position → ids that can stand there."""
    known: dict[int, Sequence[int]] = {}
    for leak in leaked:
        for position in leak.positions:
            before = known.get(position, leak.ids)
            known[position] = [i for i in leak.ids if i in before]
    return known


def single_rows(scene: TokenScene) -> TokenAttempt:
    """A position with one id that can stand there needs no further proof.

    So an embedding per column gives a whole record away.
    """
    refusal = not_one(scene)
    if refusal is not None:
        return TokenAttempt(SINGLES, False, refusal)
    sequence = torch.full((scene.positions,), UNKNOWN)
    for embedding in scene.embeddings:
        for position in embedding.offsets:
            ids = scene.known.get(position, ())
            if len(ids) == 1 and _certain(scene, embedding, position):
                sequence[position] = ids[0]
    count = int((sequence != UNKNOWN).sum())
    if not count:
        return TokenAttempt(SINGLES, False, "no position has a row of its own")
    reason = f"{count} of {scene.positions} positions have one id that fits"
    return TokenAttempt(
        SINGLES, True, reason, (), sequence, 0.0, count == scene.positions
    )


def _certain(scene: TokenScene, embedding: Embedding, position: int) -> bool:
    """Whether the row can be of this position only, or of all that share it."""
    offset = embedding.offsets[position]
    sharing = [p for p, o in embedding.offsets.items() if o == offset]
    blank = embedding.padding is not None or bool(scene.target.extras)
    return len(sharing) == 1 or not blank
