"""How precise a step is: casts, autocast, loss scale, and how far gradients differ."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._autograd import partials
from privaudit.tape.recorder import device_type
from privaudit.types import Autocast

REDUCED = (torch.float16, torch.bfloat16)
_HIGHEST_SCALE = 16
"""2^16: where torch.amp.GradScaler begins."""


def own_type(model: nn.Module) -> torch.dtype:
    """The floating-point type that the model's first parameter has."""
    types = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(types, torch.float32)


def autocast(model: nn.Module, name: str | None) -> AbstractContextManager[Any]:
    """``torch.autocast`` to the type of that name, where the model is; None: nothing.

    Nothing is kept between calls: a weight that was cast without a graph must not be
    used with one.
    """
    if name is None:
        return nullcontext()
    return torch.autocast(device_type(model), getattr(torch, name))


def autocast_now(model: nn.Module) -> Autocast | None:
    """What autocast casts to at this moment, where the model is; None: it is off."""
    kind = device_type(model)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    names: dict[torch.dtype | None, Autocast] = {
        torch.bfloat16: "bfloat16", torch.float16: "float16",
    }  # fmt: skip
    return names.get(dtype)


def scaled_partials(loss: Tensor, inputs: list[nn.Parameter]) -> list[Tensor | None]:
    """The gradient as float16 clients make it: the loss scaled up, then divided out.

    Without that small values become zero. The scale starts at 2^16 and is halved while
    the gradient overflows, as a ``GradScaler`` does over its first steps.
    """
    found: list[Tensor | None] = []
    for power in range(_HIGHEST_SCALE, -1, -1):
        scale = 2.0**power
        found = partials(loss * scale, inputs)
        if all(g is None or bool(g.isfinite().all()) for g in found):
            return [None if g is None else g / scale for g in found]
    return found


def single(tensor: Tensor) -> Tensor:
    """``tensor`` in float32 where it has fewer bits; with its graph."""
    return tensor.float() if tensor.dtype in REDUCED else tensor


def typed(model: nn.Module, inputs: Any) -> Any:
    """Images in the type of the model; ids, and inputs by name, as they are."""
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return inputs.to(own_type(model))
    return inputs


def relative_error(
    guess: Mapping[str, Tensor], observed: Mapping[str, Tensor]
) -> float:
    """‖guess − observed‖ / ‖observed‖ over all tensors of ``observed``, in float64."""
    apart = total = 0.0
    for name, value in observed.items():
        other = guess.get(name)
        size = _square(value)
        total += size
        apart += size if other is None else _square(other - value)
    if total == 0.0:
        return 0.0 if apart == 0.0 else float("inf")
    return float((apart / total) ** 0.5)


def _square(tensor: Tensor) -> float:
    """Squared norm, summed in float64."""
    norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.double)
    return float(norm) ** 2
