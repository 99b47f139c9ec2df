"""In-place calls that run out of place, with the effect that plain execution has.

In-place activations block second derivatives, and often first ones. Run out of place
they return the same value, but ``self.act(x)`` without using what it returns, or
``x + self.act(x)``, would silently see the old ``x``. So whoever names the old tensor
afterwards is given the new one.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor


class Overwritten:
    """The tensors that plain execution would have overwritten, with their new value."""

    def __init__(self) -> None:
        self._new: dict[int, tuple[Tensor, Tensor]] = {}

    def put(self, old: Tensor, new: Tensor) -> Tensor:
        """Note that ``old`` now reads ``new``; returns what the call returns."""
        if new is old:
            return old
        if _is_view(old):
            # Its base must change with it, so this one really is overwritten.
            try:
                return old.copy_(new)
            except RuntimeError:
                pass
        self._new[id(old)] = (old, new)
        return new

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a call with every overwritten tensor replaced."""
        if not self._new:
            return args, kwargs
        for value in (*args, *kwargs.values()):
            for part in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(part, Tensor) and id(part) not in self._new:
                    self._settle_shared(part)
        return self.latest(args), self.latest(kwargs)

    def latest(self, value: Any) -> Any:
        """``value``, which may hold tensors, with the overwritten ones replaced."""
        if not self._new:
            return value
        if isinstance(value, Tensor):
            while id(value) in self._new:
                value = self._new[id(value)][1]
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.latest(v) for v in value))
        if isinstance(value, (list, tuple)):
            return type(value)(self.latest(v) for v in value)
        if isinstance(value, dict):
            replaced = {k: self.latest(v) for k, v in value.items()}
            if any(replaced[k] is not v for k, v in value.items()):
                value = copy.copy(value)
                value.update(replaced)
        return value

    def _settle_shared(self, other: Tensor) -> None:
        """Overwrite for real what ``other`` shows a part of, under another name."""
        where = _storage(other)
        for key, (old, new) in list(self._new.items()):
            if where is not None and other is not new and _storage(old) == where:
                del self._new[key]
                old.copy_(new)


def _is_view(tensor: Tensor) -> bool:
    return not _wrapped(tensor) and tensor._is_view()


def _storage(tensor: Tensor) -> int | None:
    """Where its data lies; None for tensors without a place of their own."""
    if _wrapped(tensor) or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage().data_ptr() or None


def _wrapped(tensor: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
