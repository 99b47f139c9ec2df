"""What the forms on token ids look at: the model's structure and one observation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from privaudit.inventory.embeddings import (
    Embedding,
    Lookup,
    Lookups,
    embeddings_of,
    own_ids,
)
from privaudit.tape import DropSite, Op, StopTrace, Tape, Tracer, readable
from privaudit.types import Observation, TokenTarget

AT_ONCE = 4096
"""Ids in one forward pass when many candidates are tried."""


class TokenTracer:
    """Observer that collects lookups, calls on parameters and dropout sites.

    Args:
        model: Gives the names.
        stop_after: Raise ``StopTrace`` after so many linear calls; None: never.
    """

    def __init__(self, model: nn.Module, *, stop_after: int | None = None) -> None:
        self._names = {id(p): readable(n) for n, p in model.named_parameters()}
        self._lookups, self._tracer = Lookups(model), Tracer(model)
        self._stop_after = stop_after
        self.linear: list[Op] = []
        self.drawn_before: list[int] = []
        """Per linear call, how many dropout sites came before it."""

    @property
    def lookups(self) -> list[Lookup]:
        """Calls that select rows of a weight."""
        return self._lookups.found

    @property
    def sites(self) -> list[DropSite]:
        """Dropout calls, in order."""
        return self._tracer.sites

    def __call__(
        self,
        path: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Any,
    ) -> None:
        """See one call of the forward pass."""
        self._lookups(path, func, args, kwargs, out)
        self._tracer(path, func, args, kwargs, out)
        op = self._linear(path, func, args, out)
        if op is None:
            return
        self.linear.append(op)
        self.drawn_before.append(len(self.sites))
        if self._stop_after is not None and len(self.linear) >= self._stop_after:
            raise StopTrace

    def _linear(
        self, path: str, func: Any, args: tuple[Any, ...], out: Any
    ) -> Op | None:
        """A linear layer, also one written as ``addmm`` with its weight turned."""
        ops = self._tracer.ops
        if func is not torch.addmm:
            seen = bool(ops) and ops[-1].output is out and ops[-1].kind == "linear"
            return ops[-1] if seen else None
        bias, x, weight = args[:3]
        name = self._names.get(id(weight))
        if name is None:
            return None
        turned = {"turned": True}
        return Op(
            "linear", "addmm", path, name, self._names.get(id(bias)), x, out, turned
        )


@dataclass(frozen=True, eq=False)
class OwnStep:
    """One white-box step of the model on ids of the attacker's own.

    Attributes:
        ids: (batch, positions).
        linear: Linear calls, in order.
        drawn_before: Per linear call, how many dropout sites came before it.
        lookups: Calls that select rows of a weight.
        tape: The draws that a step makes, without values.
        sites: Dropout calls, in order.
        loss: With its graph.
    """

    ids: Tensor
    linear: tuple[Op, ...]
    drawn_before: tuple[int, ...]
    lookups: tuple[Lookup, ...]
    tape: Tape
    sites: tuple[DropSite, ...]
    loss: Tensor


@dataclass(frozen=True, eq=False)
class TokenScene:
    """One observation with everything that a form needs to judge it."""

    target: TokenTarget
    observation: Observation
    embeddings: Sequence[Embedding]
    own: OwnStep
    known: Mapping[int, Sequence[int]]
    """Position → the ids that can stand there, as far as the gradient shows them."""
    deadline: float = math.inf
    """On the monotonic clock; forms that try a whole vocabulary stop there."""

    @property
    def positions(self) -> int:
        """How many ids a sequence has."""
        return self.observation.image_shape[-1]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.own.ids.device

    def gradient(self, name: str | None) -> Tensor | None:
        """The observed gradient of a parameter in float64; None when not shared."""
        value = self.observation.gradients.get(name or "")
        if value is None:
            return None
        return value.detach().double()

    def knowing(self, known: Mapping[int, Sequence[int]]) -> TokenScene:
        """The same with the ids that can stand at each position."""
        return replace(self, known=known)

    def vocabulary(self, position: int) -> range:
        """The ids that the model takes at ``position``."""
        rows = [e.rows_of(position) for e in self.embeddings if position in e.offsets]
        return range(min((len(r) for r in rows), default=0))

    def candidates(self, position: int) -> Sequence[int]:
        """The ids to try at ``position``: what the gradient shows, else all."""
        return self.known.get(position) or self.vocabulary(position)

    def draws_before(self, call: int) -> list[float]:
        """Rates of the dropout that may act on the input of a linear call."""
        sites = self.own.sites[: self.own.drawn_before[call]]
        draws = [self.own.tape.draws[s.draw] for s in sites]
        return [1.0 if d.p is None else d.p for d in draws if d.active]

    def inputs_of(self, call: int, ids: Tensor) -> Tensor:
        """What a linear call is given for ``ids``: (sequences, rows, values).

        Args:
            call: Which linear call.
            ids: (sequences, positions).
        """
        if len(ids) == self.positions:
            # One more, so that sequences and positions are told apart by number.
            return self.inputs_of(call, torch.cat([ids, ids[:1]]))[:-1]
        tracer = TokenTracer(self.target.model, stop_after=call + 1)
        with suppress(StopTrace), torch.no_grad():
            target = self.target
            target.exposure.trace(target.model, target.batch(ids), tracer)
        data = tracer.linear[call].input.detach().double()
        if data.dim() == 3 and data.shape[0] != len(ids) == data.shape[1]:
            data = data.transpose(0, 1)
        return data.reshape(len(ids), -1, data.shape[-1])


def scene_of(
    target: TokenTarget,
    observation: Observation,
    generator: torch.Generator,
    *,
    deadline: float,
) -> TokenScene:
    """Look at the model once per audit: clients of one size see the same structure."""
    key = f"{TokenScene.__name__} of {observation.batch_size}"
    kept = target.memory.get(key)
    if isinstance(kept, TokenScene):
        return replace(kept, observation=observation, deadline=deadline)
    positions = observation.image_shape[-1]
    embeddings = embeddings_of(target, positions)
    size = min(2, observation.batch_size)
    ids = own_ids(embeddings, (size, positions), generator)
    own = _step(target, ids.to(next(target.model.parameters()).device))
    scene = TokenScene(target, observation, embeddings, own, {}, deadline)
    target.memory[key] = scene
    return scene


def _step(target: TokenTarget, ids: Tensor) -> OwnStep:
    tracer = TokenTracer(target.model)
    loss, _, tape = target.exposure.trace(target.model, target.batch(ids), tracer)
    return OwnStep(
        ids,
        tuple(tracer.linear),
        tuple(tracer.drawn_before),
        tuple(tracer.lookups),
        tape,
        tuple(tracer.sites),
        loss,
    )
