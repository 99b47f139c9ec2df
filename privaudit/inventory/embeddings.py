"""Which embedding takes which token id: found by running the model, not by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privaudit.tape import readable
from privaudit.types import TokenTarget

_CALLS: dict[Any, int | None] = {torch.embedding: 2, torch.embedding_bag: 8}
"""Functions whose first two arguments are weight and rows, and where their
``padding_idx`` stands."""
_FEW, _MANY = 64, 128
"""Positions from which on fewer sequences are run: long ones are texts, where one
embedding takes all, and not tables with one for each column."""


@dataclass(frozen=True, eq=False)
class Lookup:
    """One call that selects rows of a weight.

    Attributes:
        weight: Name of the parameter; None when it is none itself.
        path: Dotted path of the module that made the call.
        size: Rows of the weight.
        padding: The row that has no gradient; None: every row has one.
        rows: The rows that were selected, in any shape.
        output: What came out, with its graph.
    """

    weight: str | None
    path: str
    size: int
    padding: int | None
    rows: Tensor
    output: Tensor


@dataclass(frozen=True)
class Embedding:
    """An embedding that takes token ids.

    Attributes:
        weight: Name of the parameter; None when it is none itself.
        path: Dotted path of the module that owns the call.
        size: Rows of the weight.
        padding: The row that has no gradient; None: every row has one.
        offsets: Per position that is looked up here, the row of its id 0.
        whole: True when one call looks up all positions in order.
    """

    weight: str | None
    path: str
    size: int
    padding: int | None
    offsets: Mapping[int, int]
    whole: bool

    def rows_of(self, position: int) -> range:
        """The rows that ids at ``position`` select: up to where the next field starts.

        Fields of one table stand one after the other; those that share an offset
        share their rows.
        """
        start = self.offsets[position]
        later = [o for o in self.offsets.values() if o > start]
        return range(start, min([*later, self.size]))


class Lookups:
    """Observer that collects the lookups of a forward pass, in order."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(p): readable(n) for n, p in model.named_parameters()}
        self.found: list[Lookup] = []

    def __call__(
        self,
        path: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Any,
    ) -> None:
        """See one call of the forward pass."""
        if func not in _CALLS or len(args) < 2:
            return
        place = _CALLS[func]
        given = args[place] if place is not None and len(args) > place else -1
        padding = kwargs.get("padding_idx", given)
        weight, rows = args[:2]
        self.found.append(
            Lookup(
                self._names.get(id(weight)),
                path,
                len(weight),
                padding if isinstance(padding, int) and padding >= 0 else None,
                rows.detach(),
                out[0] if isinstance(out, tuple) else out,
            )
        )


def embeddings_of(target: TokenTarget, positions: int) -> list[Embedding]:
    """Run the model on ids of 0 and 1, and see which lookup got which of them.

    Args:
        target: The model and how it is called.
        positions: How many ids a sequence has.
    """
    known = target.memory.get(_key(positions))
    if isinstance(known, tuple):
        return list(known)
    ids = _probe(positions).to(next(target.model.parameters()).device)
    lookups = Lookups(target.model)
    target.exposure.census(
        target.model, target.batch(ids), train=True, observer=lookups
    )
    found = []
    for one in lookups.found:
        offsets = _offsets(one.rows, ids)
        if offsets:
            whole = list(offsets) == list(range(positions))
            found.append(
                Embedding(one.weight, one.path, one.size, one.padding, offsets, whole)
            )
    target.memory.update(remembered(found, positions))
    return found


def remembered(found: Sequence[Embedding], positions: int) -> dict[str, object]:
    """A memory for a target: the look at a large model takes as long as a step."""
    return {_key(positions): tuple(found)}


def _key(positions: int) -> str:
    return f"{Embedding.__name__} of {positions}"


def _probe(positions: int) -> Tensor:
    """Random ids of 0 and 1, which every embedding has rows for, no sequence all 0."""
    generator = torch.Generator().manual_seed(0)
    size = 32 if positions <= _FEW else 16 if positions <= _MANY else 8
    ids = torch.randint(0, 2, (size, positions), generator=generator)
    ids[ids.sum(1) == 0] = 1
    return ids


def _offsets(rows: Tensor, ids: Tensor) -> dict[int, int]:
    """Position → offset, where ``rows`` are the ids of these positions plus a number.

    The order of the dictionary is that of the lookup.
    """
    size, positions = ids.shape
    if rows.numel() % size or not rows.numel():
        return {}
    table = _by_sequence(rows, size)
    found: dict[int, int] = {}
    for k in range(table.shape[1]):
        # The same place first: with few values two columns may be equal by chance.
        for position in [k, *range(positions)]:
            if position >= positions or position in found:
                continue
            apart = table[:, k] - ids[:, position]
            if bool((apart == apart[0]).all()):
                found[position] = int(apart[0])
                break
        else:
            return {}
    return found


def _by_sequence(rows: Tensor, size: int) -> Tensor:
    """Rows as (sequences, places), whichever came first."""
    if rows.dim() > 1 and rows.shape[0] != size and rows.shape[1] == size:
        rows = rows.transpose(0, 1)
    return rows.reshape(size, -1)


def own_ids(
    embeddings: Sequence[Embedding], shape: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """Ids of the attacker's own: any that the model takes, but no padding."""
    ids = torch.zeros(shape, dtype=torch.long)
    for position in range(shape[1]):
        fitting = [e for e in embeddings if position in e.offsets]
        size = min((len(e.rows_of(position)) for e in fitting), default=1)
        drawn = torch.randint(size, shape[:1], generator=generator)
        padding = [
            e.padding - e.offsets[position] for e in fitting if e.padding is not None
        ]
        for _ in padding:  # with several embeddings, each may have its own
            drawn = torch.where(_among(drawn, padding), (drawn + 1) % size, drawn)
        ids[:, position] = drawn
    return ids


def _among(values: Tensor, some: Sequence[int]) -> Tensor:
    return torch.isin(values, torch.tensor(some, dtype=values.dtype))
