"""The gradients of many victims at once, against one set of weights.

Independent victims share every matrix product of a forward and backward pass; only
their gradients must be kept apart. Layers are probed: a zero addend behind a layer has
the gradient δ, and each victim's share of the layer's gradient follows from its own
rows of δ and of the inputs. Other parameters get one copy a victim where that can be
seen to mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._autograd import partials
from privaudit.exposure.gradient import GradientExposure
from privaudit.exposure.parameters import shared_parameters
from privaudit.exposure.predict import factored
from privaudit.tape import Tape
from privaudit.types import Batch


class NotSeparable(Exception):
    """Victims cannot be kept apart in this model: attack them one at a time."""


@dataclass(frozen=True, eq=False)
class ManyRows:
    """One matrix a victim, kept as ``deltaᵀ @ inputs``.

    Attributes:
        delta: (victims, rows, out).
        inputs: (victims, rows, in).
    """

    delta: Tensor
    inputs: Tensor

    def dense(self) -> Tensor:
        """(victims, out, in)."""
        return self.delta.transpose(1, 2) @ self.inputs


@dataclass(frozen=True, eq=False)
class ManyGuess:
    """The gradients of many guesses; whatever is compared comes out as (victims,)."""

    rows: Mapping[str, ManyRows]
    dense: Mapping[str, Tensor]

    def inner(self, other: ManyGuess) -> Tensor:
        """⟨self, other⟩ of each victim over all parameters of ``other``."""
        total = [_inner(self.rows[n], r) for n, r in other.rows.items()]
        for name, theirs in other.dense.items():
            mine = self.dense.get(name)
            if mine is not None:
                total.append((mine * theirs).flatten(1).sum(1))
        return torch.stack(total).sum(0)

    def square(self) -> Tensor:
        """⟨self, self⟩ of each victim."""
        return self.inner(self)


def _inner(a: ManyRows, b: ManyRows) -> Tensor:
    deltas = a.delta @ b.delta.transpose(1, 2)
    inputs = a.inputs @ b.inputs.transpose(1, 2)
    return (deltas * inputs).flatten(1).sum(1)


def predict_many(
    exposure: GradientExposure,
    model: nn.Module,
    batch: Batch,
    tape: Tape | None,
    *,
    victims: int,
) -> ManyGuess:
    """The gradient of every victim's guess, differentiable by images and masks.

    Args:
        exposure: How the gradient is made; cross-entropy on one step.
        model: One that treats its samples one by one.
        batch: The guesses of all victims, one victim after the other.
        tape: Their masks, samples in the same order; None: nothing is dropped.
        victims: How many.

    Raises:
        NotSeparable: A layer couples samples, or uses a parameter in a way that is not
            known here.
    """
    if not exposure.is_classification or exposure.local is not None:
        raise NotSeparable("the loss or the steps are the user's own")
    shared = shared_parameters(model)
    prober = _Prober({id(p): n for n, p in shared.items()}, len(batch), victims)
    loss = exposure.loss_of(model, batch, tape, calls=prober) * victims
    found = partials(loss, prober.leaves, create_graph=True)
    by_leaf = dict(zip(map(id, prober.leaves), found, strict=True))
    rows: dict[str, ManyRows] = {}
    dense: dict[str, Tensor] = {}
    for use in prober.uses:
        delta = by_leaf[id(use.probe)]
        if delta is None:
            continue
        use.put(delta, victims, rows, dense)
    return ManyGuess(rows, dense)


def observed_many(
    guess: ManyGuess, gradients: Sequence[Mapping[str, Tensor]]
) -> ManyGuess:
    """The observed gradients of all victims in the form of ``guess``."""
    rows, dense = {}, {}
    for name in gradients[0]:
        each = [g[name].detach() for g in gradients]
        if name in guess.rows:
            parts = [factored(g, guess.rows[name].delta.shape[1]) for g in each]
            rows[name] = ManyRows(
                _padded([p.delta for p in parts]), _padded([p.inputs for p in parts])
            )
        else:
            dense[name] = torch.stack(each)
    return ManyGuess(rows, dense)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """(victims, most rows, values), zeros behind the shorter ones."""
    most = max(len(p) for p in parts)
    return torch.stack([F.pad(p, (0, 0, 0, most - len(p))) for p in parts])


Put = Callable[[Tensor, int, dict[str, ManyRows], dict[str, Tensor]], None]


@dataclass(frozen=True, eq=False)
class _Use:
    """A probe, and what its gradient says about the parameters behind it."""

    probe: Tensor
    put: Put


@dataclass(eq=False)
class _Prober:
    """Runs the calls that use parameters, each with a probe."""

    names: Mapping[int, str]
    samples: int
    victims: int
    uses: list[_Use] = field(default_factory=list)
    done: set[str] = field(default_factory=set)

    @property
    def leaves(self) -> list[Tensor]:
        """What to differentiate by."""
        return [u.probe for u in self.uses]

    def __call__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """The call, probed; ``NotImplemented`` where no parameter is in it."""
        run = _CALLS.get(func)
        if run is not None:
            return run(self, func, args, kwargs)
        if func in _COUPLING:
            raise NotSeparable(f"{func.__name__} couples the samples")
        if not any(id(a) in self.names for a in _flat([*args, *kwargs.values()])):
            return NotImplemented
        copies = [self._copy(a) for a in args]
        return func(*copies, **{k: self._copy(v) for k, v in kwargs.items()})

    def _copy(self, value: Any) -> Any:
        """A parameter with a batch dimension of one: one copy for each sample."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._copy(v) for v in value)
        name = self.names.get(id(value))
        if name is None:
            return value
        if value.dim() < 2 or value.shape[0] != 1:
            raise NotSeparable(f"{name} is used in a way that is not known here")
        self.once(name)
        leaf = value.detach().expand(self.samples, *value.shape[1:]).clone()
        leaf.requires_grad_()

        def put(delta: Tensor, victims: int, _: Any, dense: dict[str, Tensor]) -> None:
            dense[name] = _by_victim(delta, victims).sum(1, keepdim=True)

        self.uses.append(_Use(leaf, put))
        return leaf

    def once(self, name: str) -> None:
        """Refuse a parameter that is used twice."""
        if name in self.done:
            raise NotSeparable(f"{name} is used more than once")
        self.done.add(name)

    def probed(self, out: Tensor, put: Put) -> Tensor:
        """``out`` with a zero addend."""
        if out.shape[0] != self.samples:
            raise NotSeparable("a layer does not keep the samples in front")
        probe = torch.zeros_like(out, requires_grad=True)
        self.uses.append(_Use(probe, put))
        return out + probe

    def own(self, value: Tensor | None) -> str | None:
        """The name of a shared parameter, taken for this use."""
        name = None if value is None else self.names.get(id(value))
        if name is not None:
            self.once(name)
        return name


def _flat(values: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat.extend(value if isinstance(value, (list, tuple)) else [value])
    return flat


def _named(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _by_victim(values: Tensor, victims: int) -> Tensor:
    """(victims, samples of one, …)."""
    return values.reshape(victims, -1, *values.shape[1:])


def _bias_sum(delta: Tensor, victims: int) -> Tensor:
    """(victims, features): δ over everything but the last dimension."""
    return delta.reshape(victims, -1, delta.shape[-1]).sum(1)


def _linear(
    prober: _Prober, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> Any:
    given = _named(("input", "weight", "bias"), args, kwargs)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    name, bias_name = prober.own(weight), prober.own(bias)
    if name is None and bias_name is None:
        return NotImplemented
    out = func(x, weight.detach(), None if bias is None else bias.detach())

    def put(
        delta: Tensor,
        victims: int,
        rows: dict[str, ManyRows],
        dense: dict[str, Tensor],
    ) -> None:
        parts = ManyRows(
            delta.reshape(victims, -1, delta.shape[-1]),
            x.reshape(victims, -1, x.shape[-1]),
        )
        if name is not None:
            count = parts.delta.shape[1]
            if count * (weight.shape[0] + weight.shape[1]) < weight.numel():
                rows[name] = parts
            else:
                dense[name] = parts.dense()
        if bias_name is not None:
            dense[bias_name] = _bias_sum(delta, victims)

    return prober.probed(out, put)


_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _conv2d(
    prober: _Prober, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> Any:
    given = _named(_CONV, args, kwargs)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if given.get("groups", 1) != 1 or isinstance(given.get("padding", 0), str):
        raise NotSeparable("a grouped convolution, or padding given as a word")
    name, bias_name = prober.own(weight), prober.own(bias)
    settings = {k: v for k, v in given.items() if k not in ("input", "weight", "bias")}
    out = func(x, weight.detach(), None if bias is None else bias.detach(), **settings)
    unfold = {
        k: settings[k] for k in ("stride", "padding", "dilation") if k in settings
    }

    def put(
        delta: Tensor, victims: int, _: dict[str, ManyRows], dense: dict[str, Tensor]
    ) -> None:
        flat = delta.flatten(2)
        if name is not None:
            patches = F.unfold(x, weight.shape[-2:], **unfold)
            each = flat @ patches.transpose(1, 2)
            summed = _by_victim(each, victims).sum(1)
            dense[name] = summed.view(victims, *weight.shape)
        if bias_name is not None:
            dense[bias_name] = _by_victim(flat.sum(2), victims).sum(1)

    return prober.probed(out, put)


def _layer_norm(
    prober: _Prober, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> Any:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given = _named(names, args, kwargs)
    weight, bias = given.get("weight"), given.get("bias")
    if weight is None:
        return NotImplemented
    plain = func(given["input"], given["normalized_shape"], eps=given.get("eps", 1e-5))
    out = plain * weight.detach()
    if bias is not None:
        out = out + bias.detach()
    return _scaled(prober, plain, out, weight=weight, bias=bias)


def _scaled(
    prober: _Prober, plain: Tensor, out: Tensor, *, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """``out = plain · weight + bias``, features last."""
    name, bias_name = prober.own(weight), prober.own(bias)
    if weight.dim() != 1:
        raise NotSeparable("a norm over several dimensions")

    def put(
        delta: Tensor, victims: int, _: dict[str, ManyRows], dense: dict[str, Tensor]
    ) -> None:
        if name is not None:
            dense[name] = _bias_sum(delta * plain, victims)
        if bias_name is not None:
            dense[bias_name] = _bias_sum(delta, victims)

    return prober.probed(out, put)


_CALLS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    torch.conv2d: _conv2d,
    torch.layer_norm: _layer_norm,
}
_COUPLING = {torch.batch_norm, torch.instance_norm}
