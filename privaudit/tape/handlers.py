"""What the recorder does with each random function. The mathematics is spelled out,
so that a mask is a value of ours and not a side effect inside a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from privaudit.tape.recorder import Recorder


class Call(NamedTuple):
    """One call as the mode sees it."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def given(self, *names: str) -> dict[str, Any]:
        """Arguments by name, positional ones called as in ``names``."""
        return dict(zip(names, self.args, strict=False)) | self.kwargs

    def run(self) -> Any:
        """The call itself."""
        return self.func(*self.args, **self.kwargs)


Handler = Callable[["Recorder", Call], Any]

# AlphaDropout (Klambauer 2017): dropped units take the value alpha' = -scale*alpha.
_ALPHA = 1.7580993408473766


def apply_dropout(
    recorder: Recorder,
    x: Tensor,
    p: float,
    *,
    kind: str = "dropout",
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    """``x * mask / (1 - p)`` with a mask of ``shape`` (default: of ``x``)."""
    keep = recorder.mask(
        recorder.kind(kind), p=p, like=x, shape=shape or tuple(x.shape)
    )
    scale = 1.0 if p == 1.0 else 1 - p
    out = x.clone() if keep is None else x * (keep / scale)
    recorder.seen(torch.dropout, x, out)
    return out


def apply_alpha_dropout(
    recorder: Recorder, x: Tensor, p: float, *, shape: tuple[int, ...] | None = None
) -> Tensor:
    """``a * (x * m) + b`` with the dropped units at alpha', mean and variance kept."""
    keep = recorder.mask(
        recorder.kind("alpha_dropout"), p=p, like=x, shape=shape or tuple(x.shape)
    )
    if keep is None:
        return x.clone()
    if p == 1.0:
        return x * keep
    a = 1.0 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    return a * (x * keep) + ((keep - 1) * (_ALPHA * a) + _ALPHA * a * p)


def _dropout(recorder: Recorder, call: Call) -> Any:
    x, p, train = _arguments(call)
    return apply_dropout(recorder, x, p) if train else x


def _feature_dropout(recorder: Recorder, call: Call) -> Any:
    x, p, train = _arguments(call)
    if not train:
        return x
    return apply_dropout(recorder, x, p, kind="feature_dropout", shape=_per_channel(x))


def _alpha_dropout(recorder: Recorder, call: Call) -> Any:
    x, p, train = _arguments(call)
    return apply_alpha_dropout(recorder, x, p) if train else x


def _feature_alpha_dropout(recorder: Recorder, call: Call) -> Any:
    x, p, train = _arguments(call)
    return apply_alpha_dropout(recorder, x, p, shape=_per_channel(x)) if train else x


def _arguments(call: Call) -> tuple[Tensor, float, bool]:
    given = call.given("input", "p", "train")
    return given["input"], float(given["p"]), bool(given["train"])


def _per_channel(x: Tensor) -> tuple[int, ...]:
    return (*x.shape[:2], *(1 for _ in x.shape[2:]))


def _attention(recorder: Recorder, call: Call) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = call.given(*names)
    if not given.get("dropout_p"):
        return call.run()
    return _explicit_attention(recorder, **given)


def _explicit_attention(
    recorder: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention with its dropout mask on the probabilities."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    root = math.sqrt(abs(scale))
    scores = (query * math.copysign(root, scale)) @ (key * root).transpose(-2, -1)
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~causal.tril(), -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    if is_causal or attn_mask is not None:
        weights = weights.masked_fill(scores.isneginf().all(-1, keepdim=True), 0.0)
    return _attention_dropout(recorder, weights, dropout_p) @ value


def _attention_dropout(recorder: Recorder, weights: Tensor, p: float) -> Tensor:
    with recorder.inside("attention-prob dropout"):
        return apply_dropout(recorder, weights, p)


def _bernoulli_(recorder: Recorder, call: Call) -> Any:
    """In-place Bernoulli on a fresh tensor: how stochastic depth is written."""
    given = call.given("self", "p")
    x, p = given["self"], given.get("p", 0.5)
    if isinstance(p, Tensor):
        return _noise_(recorder, call)
    kind = "drop path" if _is_per_sample(x) else "bernoulli"
    drop = round(1 - float(p), 12)
    keep = recorder.mask(kind, p=drop, like=x, shape=tuple(x.shape))
    if keep is None:
        # Code of this kind divides by the keep rate afterwards; switched off means
        # that the product is 1.
        return x.fill_(float(p)) if recorder.switched_off else x.fill_(1.0)
    return x.copy_(keep)


def _is_per_sample(x: Tensor) -> bool:
    return x.dim() > 1 and all(n == 1 for n in x.shape[1:])


def _noise(recorder: Recorder, call: Call) -> Any:
    kind = f"noise: {recorder.kind(call.func.__name__)}"
    value = recorder.noise(kind, call.run)
    return _centre(call, value) if recorder.switched_off else value.clone()


def _noise_(recorder: Recorder, call: Call) -> Any:
    kind = f"noise: {recorder.kind(call.func.__name__.rstrip('_'))}"
    value = recorder.noise(kind, lambda: call.run().detach().clone())
    return call.args[0].copy_(_centre(call, value) if recorder.switched_off else value)


def _centre(call: Call, value: Tensor) -> Tensor:
    """What stands for a draw that is switched off: nothing left to chance.

    Zero for noise; the probability itself for a mask that is divided by it later;
    one half for ``rand``, which home-made dropout and stochastic depth compare with
    their rate, in either direction.
    """
    name = call.func.__name__
    if name in ("rand", "rand_like"):
        return torch.full_like(value, 0.5)
    if name == "uniform_":
        given = call.given("self", "from", "to")
        middle = (given.get("from", 0.0) + given.get("to", 1.0)) / 2
        return torch.full_like(value, middle)
    if name in ("bernoulli", "bernoulli_"):
        given = call.given("self" if name == "bernoulli_" else "input", "p")
        p = given.get("p", given.get("input"))
        return value * 0 + p if p is not None else torch.zeros_like(value)
    return torch.zeros_like(value)


def _rrelu(recorder: Recorder, call: Call) -> Any:
    """Randomised leaky ReLU: the drawn slopes are the noise."""
    given = call.given("input", "lower", "upper", "training")
    x: Tensor = given["input"]
    lower, upper = given.get("lower", 1 / 8), given.get("upper", 1 / 3)
    if not given.get("training") or recorder.switched_off:
        return F.leaky_relu(x, (lower + upper) / 2)
    slope = recorder.noise(
        "noise: rrelu", lambda: torch.empty_like(x).uniform_(lower, upper)
    )
    return torch.where(x > 0, x, x * slope)


def _hardsigmoid(_: Recorder, call: Call) -> Any:
    """The same function, written so that it has a second derivative."""
    return F.relu6(call.args[0] + 3) / 6


def _recurrent(recorder: Recorder, call: Call) -> Any:
    """Dropout between layers happens inside; the census sees it under this name."""
    with recorder.inside(f"{call.func.__name__.upper()} inter-layer dropout"):
        return call.run()


_FACTORIES = (
    torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.randint,
    torch.randint_like, torch.randperm, torch.normal, torch.bernoulli,
    torch.multinomial, torch.poisson, Tensor.bernoulli, Tensor.multinomial,
)  # fmt: skip
_IN_PLACE = (
    Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.geometric_,
    Tensor.cauchy_, Tensor.log_normal_, Tensor.random_,
)  # fmt: skip

OVERWRITING = frozenset(
    {
        torch.dropout_,
        torch.feature_dropout_,
        torch.alpha_dropout_,
        torch.feature_alpha_dropout_,
        torch.rrelu_,
        torch._C._nn.hardsigmoid_,
    }
)
"""Handled out of place; the recorder sees to the effect on their first argument."""

HANDLERS: Mapping[Callable[..., Any], Handler] = {
    torch.dropout: _dropout,
    torch.dropout_: _dropout,
    torch.feature_dropout: _feature_dropout,
    torch.feature_dropout_: _feature_dropout,
    torch.alpha_dropout: _alpha_dropout,
    torch.alpha_dropout_: _alpha_dropout,
    torch.feature_alpha_dropout: _feature_alpha_dropout,
    torch.feature_alpha_dropout_: _feature_alpha_dropout,
    F.scaled_dot_product_attention: _attention,
    Tensor.bernoulli_: _bernoulli_,
    torch.rrelu: _rrelu,
    torch.rrelu_: _rrelu,
    torch._C._nn.hardsigmoid: _hardsigmoid,
    torch._C._nn.hardsigmoid_: _hardsigmoid,
    torch.lstm: _recurrent,
    torch.gru: _recurrent,
    torch.rnn_tanh: _recurrent,
    torch.rnn_relu: _recurrent,
    **dict.fromkeys(_FACTORIES, _noise),
    **dict.fromkeys(_IN_PLACE, _noise_),
}
