"""The gradient of a guess as the inner loop of an attack needs it.

For a linear layer the gradient is δᵀa: rows of output gradients times rows of inputs.
Inner products and norms follow from the rows, so the product itself, the largest
thing in most models, is never formed where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._autograd import partials
from privaudit.exposure.gradient import GradientExposure
from privaudit.exposure.parameters import shared_parameters
from privaudit.exposure.precision import single
from privaudit.exposure.simulate import simulate
from privaudit.tape import Tape
from privaudit.tape.recorder import Observer
from privaudit.types import Batch

_SPARE = 8
"""Directions beyond the expected rank by which a random projection is made."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A matrix kept as ``deltaᵀ @ inputs``.

    Attributes:
        delta: (rows, out).
        inputs: (rows, in).
    """

    delta: Tensor
    inputs: Tensor

    def dense(self) -> Tensor:
        """The matrix itself, (out, in)."""
        return self.delta.T @ self.inputs

    def double(self) -> Rows:
        """The same in float64."""
        return Rows(self.delta.double(), self.inputs.double())


@dataclass(frozen=True, eq=False)
class GradientGuess:
    """The gradient of a guess, large linear layers in factored form."""

    rows: Mapping[str, Rows]
    dense: Mapping[str, Tensor]

    def inner(self, other: GradientGuess) -> Tensor:
        """⟨self, other⟩ over all parameters of ``other``."""
        total = [_inner_rows(self.rows[n], r) for n, r in other.rows.items()]
        total += [
            (self.dense[n] * t).sum() for n, t in other.dense.items() if n in self.dense
        ]
        return torch.stack(total).sum()

    def square(self) -> Tensor:
        """⟨self, self⟩."""
        return self.inner(self)

    def squares(self) -> dict[str, Tensor]:
        """‖self‖² per parameter."""
        dense = {n: t.square().sum() for n, t in self.dense.items()}
        return dense | {n: _inner_rows(r, r) for n, r in self.rows.items()}

    def squares_apart(self, observed: GradientGuess) -> dict[str, Tensor]:
        """‖self − observed‖² per parameter of ``observed``.

        Rows are compared in float64: three inner products that nearly cancel.
        """
        found = {
            n: (self.dense[n] - t if n in self.dense else t).square().sum()
            for n, t in observed.dense.items()
        }
        for name, theirs in observed.rows.items():
            a, b = self.rows[name].double(), theirs.double()
            cross = _inner_rows(a, b)
            found[name] = _inner_rows(a, a) - 2 * cross + _inner_rows(b, b)
        return found


def _inner_rows(a: Rows, b: Rows) -> Tensor:
    return ((a.delta @ b.delta.T) * (a.inputs @ b.inputs.T)).sum()


@dataclass(eq=False)
class Prober:
    """Puts a zero addend behind linear layers; its gradient is δ.

    Args:
        names: Shared weights by identity.
        factor: False leaves every layer to autograd: the reference path.
    """

    names: Mapping[int, str]
    factor: bool = True
    seen: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    biases: dict[str, list[Tensor]] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)

    def __call__(self, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        """Run one linear call, probed where that pays."""
        given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
        x, weight, bias = given["input"], given["weight"], given.get("bias")
        name = self.names.get(id(weight))
        if name is None or name in self.plain or not self._pays(name, x, weight):
            if name is not None:
                self.plain.add(name)
            return func(*args, **kwargs)
        bias_name = self.names.get(id(bias))
        held = bias if bias is None or bias_name is None else bias.detach()
        out = func(x, weight.detach(), held)
        probe = torch.zeros_like(out, requires_grad=True)
        self.seen.setdefault(name, []).append((x.reshape(-1, x.shape[-1]), probe))
        if bias_name is not None:
            self.biases.setdefault(bias_name, []).append(probe)
        return out + probe

    def _pays(self, name: str, x: Tensor, weight: Tensor) -> bool:
        rows = x.numel() // x.shape[-1]
        cheaper = rows * (weight.shape[0] + weight.shape[1]) < weight.numel()
        return name in self.seen or (self.factor and cheaper)


def predict(
    exposure: GradientExposure,
    model: nn.Module,
    batch: Batch,
    tape: Tape | None,
    *,
    factor: bool = True,
    observer: Observer | None = None,
) -> GradientGuess:
    """The gradient of a guess, differentiable by images, labels and masks.

    Args:
        exposure: How the gradient is made.
        model: The model.
        batch: The guess; images, and soft labels, may carry a graph.
        tape: Masks, which may carry a graph; None: nothing is dropped.
        factor: False forms every gradient (the reference path).
        observer: Sees the calls of the forward pass, linear layers excepted.
    """
    if exposure.local is not None:
        sent = simulate(exposure, model, batch, tape, observer=observer)
        return GradientGuess({}, sent)
    shared = shared_parameters(model)
    prober = Prober({id(p): n for n, p in shared.items()}, factor)
    loss = exposure.loss_of(model, batch, tape, linear=prober, observer=observer)
    probes = [p for uses in prober.seen.values() for _, p in uses]
    free = [n for n in shared if n not in prober.seen and n not in prober.biases]
    wanted = [*probes, *(shared[n] for n in free)]
    found = partials(loss, wanted, create_graph=True)
    deltas = dict(zip(map(id, probes), found, strict=False))
    dense = {
        n: single(g)
        for n, g in zip(free, found[len(probes) :], strict=True)
        if g is not None
    }
    rows = {}
    for name, uses in prober.seen.items():
        flat = [_flat(deltas[id(p)], p) for _, p in uses]
        inputs = torch.cat([single(x) for x, _ in uses])
        rows[name] = Rows(torch.cat(flat), inputs)
    for name, bias_probes in prober.biases.items():
        flat = [_flat(deltas[id(p)], p).sum(0) for p in bias_probes]
        dense[name] = torch.stack(flat).sum(0)
    return GradientGuess(rows, dense)


def _flat(delta: Tensor | None, probe: Tensor) -> Tensor:
    delta = torch.zeros_like(probe) if delta is None else delta
    return single(delta.reshape(-1, delta.shape[-1]))


def observed_as(guess: GradientGuess, gradients: Mapping[str, Tensor]) -> GradientGuess:
    """The observed gradient in the form of ``guess``, factored by its own rank.

    A matrix that is not of the low rank that the guess has is factored as it is: the
    factors are exact to float64 rounding, whatever their number.
    """
    rows, dense = {}, {}
    for name, value in gradients.items():
        if name in guess.rows:
            rows[name] = factored(value.detach(), len(guess.rows[name].delta))
        else:
            dense[name] = value.detach()
    return GradientGuess(rows, dense)


def factored(matrix: Tensor, rank: int | None = None) -> Rows:
    """``matrix`` as a product of few rows, exact to its own rounding.

    Args:
        matrix: (out, in).
        rank: How many rows are likely enough: saves time, and is checked.
    """
    wide = matrix.double()
    u, s, vh = _svd(wide, rank)
    # Float32 rounding of a low-rank matrix fills the tail with about 1e-7 of its norm.
    kept = s > 3e-7 * s[0] if bool(s[0] > 0) else s >= 0
    count = max(1, int(kept.sum()))
    root = s[:count].sqrt()
    delta, inputs = root[:, None] * u[:, :count].T, root[:, None] * vh[:count]
    return Rows(delta.to(matrix.dtype), inputs.to(matrix.dtype))


def _svd(matrix: Tensor, rank: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The whole decomposition, or its front where that is all there is.

    A random projection finds the row space of a matrix of low rank. Source: Halko 2011.
    """
    count = (rank or matrix.shape[1]) + _SPARE
    if 2 * count < min(matrix.shape):
        # Fixed numbers: the same matrix has the same factors, and no generator moves.
        generator = torch.Generator().manual_seed(0)
        probe = torch.randn(
            matrix.shape[1], count, generator=generator, dtype=matrix.dtype
        ).to(matrix.device)
        basis = torch.linalg.qr(matrix @ probe)[0]
        small = basis.T @ matrix
        if float((matrix - basis @ small).norm()) <= 1e-6 * float(matrix.norm()):
            u, s, vh = torch.linalg.svd(small, full_matrices=False)
            return basis @ u, s, vh
    whole = torch.linalg.svd(matrix, full_matrices=False)
    return whole.U, whole.S, whole.Vh
