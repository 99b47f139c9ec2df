"""What is different inside an audit, so that second derivatives exist.

Nothing here touches the user's modules; every change ends with the context.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def audit_conditions(model: nn.Module) -> Iterator[None]:
    """Math attention, eager, nothing recomputed, no cuDNN for RNNs on CUDA."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_no_checkpoints())
        if _recurrent_on_cuda(model):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


def changes(model: nn.Module) -> list[str]:
    """What :func:`audit_conditions` and the tape change for this model, in words."""
    listed = [
        "attention runs through the math kernel (fused kernels have no second "
        "derivative)"
    ]
    if any(hasattr(m, "_orig_mod") for m in model.modules()):
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
