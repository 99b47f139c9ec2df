"""A white-box look at one forward pass: which parameters meet which data, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit.tape.owners import readable

OpKind = Literal["linear", "conv2d", "layer_norm", "other"]


class StopTrace(Exception):
    """Ends a forward pass once enough has been seen."""


@dataclass(frozen=True, eq=False)
class Op:
    """One call that uses a parameter.

    Attributes:
        kind: What it computes; ``other`` for what no closed form knows.
        function: Its name in torch.
        path: Dotted path of the module that made the call.
        weight: Name of the weight; None when it is not a shared parameter itself.
        bias: Name of the bias, if there is one.
        input: What went in, with its graph.
        output: What came out, with its graph.
        settings: Stride, padding and so on; epsilon of a norm.
    """

    kind: OpKind
    function: str
    path: str
    weight: str | None
    bias: str | None
    input: Tensor
    output: Tensor
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class DropSite:
    """Where a dropout call sits: the tensors before and after, and its draw's index."""

    draw: int
    input: Tensor
    output: Tensor


class Tracer:
    """Observer that collects every call on a parameter, and every dropout site.

    Args:
        model: Gives the names.
        stop_after: Raise :class:`StopTrace` after so many calls; None: never.
    """

    def __init__(self, model: nn.Module, *, stop_after: int | None = None) -> None:
        self._names = {id(p): readable(n) for n, p in model.named_parameters()}
        self._stop_after = stop_after
        self.ops: list[Op] = []
        self.sites: list[DropSite] = []

    def __call__(
        self,
        path: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Any,
    ) -> None:
        """See one call of the forward pass."""
        if "draw" in kwargs:
            self.sites.append(DropSite(kwargs["draw"], args[0], out))
            return
        if not isinstance(out, Tensor):
            return
        op = self._read(path, func, args, kwargs, out)
        if op is not None:
            self.ops.append(op)
            if self._stop_after is not None and len(self.ops) >= self._stop_after:
                raise StopTrace

    def _read(
        self,
        path: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Tensor,
    ) -> Op | None:
        signature = _SIGNATURES.get(func)
        if signature is None:
            return self._other(path, func, args, kwargs, out)
        kind, names = signature
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        settings = {
            k: v for k, v in given.items() if k not in ("input", "weight", "bias")
        }
        if kind == "conv2d":
            settings["kernel_size"] = tuple(given["weight"].shape[-2:])
        return Op(
            kind,
            func.__name__,
            path,
            self._names.get(id(given.get("weight"))),
            self._names.get(id(given.get("bias"))),
            given["input"],
            out,
            settings,
        )

    def _other(
        self,
        path: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Tensor,
    ) -> Op | None:
        flat = [*_flat(args), *_flat(tuple(kwargs.values()))]
        used = [self._names[id(a)] for a in flat if id(a) in self._names]
        data = [a for a in flat if isinstance(a, Tensor) and id(a) not in self._names]
        data = [a for a in data if a.requires_grad]
        if not used or not data:
            return None
        return Op("other", func.__name__, path, used[0], None, data[0], out)


_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_SIGNATURES: dict[Callable[..., Any], tuple[OpKind, tuple[str, ...]]] = {
    F.linear: ("linear", ("input", "weight", "bias")),
    torch.conv2d: ("conv2d", _CONV),
    torch.layer_norm: (
        "layer_norm",
        ("input", "normalized_shape", "weight", "bias", "eps"),
    ),
}


def _flat(values: tuple[Any, ...]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat.extend(value if isinstance(value, (list, tuple)) else [value])
    return flat


def same_data(a: Tensor, b: Tensor) -> bool:
    """True when two tensors are views of all of one storage, whatever their shape."""
    return (
        a.numel() == b.numel()
        and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    )
