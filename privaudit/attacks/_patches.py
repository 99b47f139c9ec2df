"""A first layer that sees the image in patches: convolution, or linear on tokens."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from privaudit.tape import Op


def patches_of(op: Op) -> bool:
    """True when the layer's output is one token per patch."""
    if op.kind == "linear":
        return op.input.dim() == 3 and op.input.shape[1] > 1
    simple = op.settings.get("groups", 1) == 1
    return (
        op.kind == "conv2d"
        and simple
        and not isinstance(op.settings.get("padding", 0), str)
    )


def unfold(op: Op, data: Tensor) -> Tensor:
    """Layer input → patches, shape (tokens, values per patch)."""
    if op.kind == "linear":
        return data.reshape(-1, data.shape[-1])
    return F.unfold(data, **_window(op))[0].T


def fold(op: Op, patches: Tensor) -> Tensor:
    """Patches → layer input; where patches overlap, their mean."""
    patches = patches.to(op.input.dtype)
    if op.kind == "linear":
        return patches.view(op.input.shape)
    size = op.input.shape[-2:]
    window = _window(op)
    summed = F.fold(patches.T[None], size, **window)
    ones = F.fold(patches.new_ones(patches.T[None].shape), size, **window)
    return summed / ones.clamp_min(1)


def token_gradient(op: Op, output: Tensor) -> Tensor:
    """Layer output, or its gradient, as (tokens, width)."""
    if op.kind == "linear":
        return output.reshape(-1, output.shape[-1])
    return output[0].flatten(1).T


def _window(op: Op) -> dict[str, Any]:
    """Kernel size and settings of the convolution as ``unfold`` takes them."""
    settings = {
        name: op.settings.get(name, default)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    }
    pairs = {k: (v, v) if isinstance(v, int) else tuple(v) for k, v in settings.items()}
    return {"kernel_size": kernel_size(op), **pairs}


def kernel_size(op: Op) -> tuple[int, int]:
    """Height and width of the convolution's kernel."""
    kernel = op.settings["kernel_size"]
    return int(kernel[0]), int(kernel[1])
