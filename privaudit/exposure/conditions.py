"""What is different inside an audit, so that second derivatives exist.

Nothing here touches the user's modules; every change ends with the context.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint

from privaudit.exposure.precision import own_type
from privaudit.exposure.unwrap import compiled_parts


@contextmanager
def audit_conditions(model: nn.Module) -> Iterator[None]:
    """Math attention, eager, nothing recomputed, no cuDNN for RNNs on CUDA."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(keep_activations())
        if compiled_parts(model):
            stack.enter_context(_quiet_compile())
        if _recurrent_on_cuda(model):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


@contextmanager
def keep_activations() -> Iterator[None]:
    """Keep activations: recomputing them later would draw other masks.

    Reentrant checkpoints would even hide their parameters from
    ``torch.autograd.grad``. Recomputing saves memory and changes nothing else.
    """
    kept = {name: getattr(checkpoint, name) for name in _RECOMPUTE}
    try:
        for name, instead in _RECOMPUTE.items():
            setattr(checkpoint, name, instead)
        yield
    finally:
        for name, original in kept.items():
            setattr(checkpoint, name, original)


class _RunNow:
    """Stands in for the reentrant checkpoint."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        return function(*args)


_RECOMPUTE: dict[str, Any] = {
    "CheckpointFunction": _RunNow,
    "_checkpoint_hook": lambda _: nullcontext(),
}


@contextmanager
def _quiet_compile() -> Iterator[None]:
    """Compiled parts run eagerly here, so their word about global hooks is moot."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile.module.`", UserWarning)
        yield


def changes(model: nn.Module) -> list[str]:
    """What :func:`audit_conditions` and the tape change for this model, in words."""
    listed = [
        "attention, where there is any, runs through the math kernel (fused kernels "
        "have no second derivative)"
    ]
    if own_type(model) != torch.float32:
        name = str(own_type(model)).removeprefix("torch.")
        listed.append(f"images are cast to {name}, the type of the first parameter")
    if compiled_parts(model):
        listed.append("compiled parts run eagerly")
    in_place = [n for n, m in model.named_modules() if getattr(m, "inplace", False)]
    if in_place:
        listed.append(
            f"in-place activations run out of place ({len(in_place)} modules, first: "
            f"{in_place[0]})"
        )
    if any(isinstance(m, nn.Hardsigmoid) for m in model.modules()):
        listed.append("hardsigmoid is computed as relu6(x + 3) / 6")
    if _recurrent_on_cuda(model):
        listed.append("recurrent layers run without cuDNN")
    return listed


def _recurrent_on_cuda(model: nn.Module) -> bool:
    return any(
        isinstance(m, nn.RNNBase) and next(m.parameters()).is_cuda
        for m in model.modules()
    )
