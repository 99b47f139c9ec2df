"""Where every row of an embedding's gradient is filled, those of the ids stand out.

What an output layer writes into the rows of other ids varies little from row to row
(probabilities times hidden states), while an id of the step has a term of its own. In
the space of the leading left singular vectors such a row is nearly an axis: its
leverage is close to 1. Needs neither positions nor a batch of one; it is a reading,
not an equation, so it is tried on a step of the attacker's own first.
Source: design of this project.
"""

from __future__ import annotations

from torch import Tensor

from privaudit._autograd import partials
from privaudit.attacks._token_forms import TokenAttempt
from privaudit.attacks._token_position import text_embeddings
from privaudit.attacks._token_scene import TokenScene
from privaudit.attacks._token_tied import left_basis
from privaudit.exposure import shared_parameters
from privaudit.inventory.embeddings import Embedding
from privaudit.types import LeakedIds

STAND_OUT = "rows that stand out"
_RANK = 1e-6
_LEVERAGE = 0.9
_OWN = 0.9
"""Share of the attacker's own ids that must stand out in a step on them."""


def standing_out(scene: TokenScene) -> TokenAttempt:
    """Ids whose rows have a leverage near 1, where other ids' rows are filled too."""
    found: list[LeakedIds] = []
    told: list[str] = []
    for embedding in text_embeddings(scene):
        gradient = scene.gradient(embedding.weight)
        if gradient is None or not gradient.any():
            told.append(f"{embedding.weight} is not shared, or its gradient is zero")
            continue
        share = _share_of_own(scene, embedding)
        if share < _OWN:
            told.append(f"in a step of the attacker's own {share:.0%} stand out")
            continue
        rows = _rows(gradient)
        most = scene.observation.batch_size * scene.positions
        told.append(f"{len(rows)} rows of {embedding.weight} stand out")
        if 0 < len(rows) <= most:
            offset = embedding.offsets[0]
            ids = tuple(r - offset for r in rows)
            positions = tuple(range(scene.positions))
            found.append(LeakedIds(embedding.weight or "", positions, ids))
    reason = "; ".join(told) or "no embedding takes all positions"
    return TokenAttempt(STAND_OUT, bool(found), reason, found)


def _rows(gradient: Tensor) -> list[int]:
    basis = left_basis(gradient, _RANK * float(gradient.norm()))
    leverage = basis.square().sum(1)
    return [int(r) for r in (leverage > _LEVERAGE).nonzero().flatten()]


def _share_of_own(scene: TokenScene, embedding: Embedding) -> float:
    """How many of the attacker's own ids stand out; 0 where others do as well."""
    parameter = shared_parameters(scene.target.model)[embedding.weight or ""]
    (gradient,) = partials(scene.own.loss, [parameter])
    if gradient is None or not gradient.any():
        return 0.0
    rows = set(_rows(gradient.double()))
    own = set((scene.own.ids + embedding.offsets[0]).flatten().tolist())
    # A label that is no id of the text may stand out too, one per sequence.
    others = len(rows - own) > len(scene.own.ids)
    return 0.0 if others else len(rows & own) / len(own)
