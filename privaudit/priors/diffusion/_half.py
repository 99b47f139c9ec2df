"""A network in lower precision, with float32 around it and gradients that survive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privaudit.errors import AttackError


def in_precision(
    function: Callable[[Tensor], Tensor], inputs: Tensor, dtype: torch.dtype
) -> Tensor:
    """``function`` computed in ``dtype``; float32 comes out.

    The gradient of each row is scaled to a largest entry of 1 on its way in and scaled
    back on its way out: half precision rounds what is below 6e-8 to zero, and a
    guidance that vanishes would understate what leaks. Source: Micikevicius 2018,
    section 3.2; differs in one scale a row, chosen anew each time.

    Raises:
        AttackError: On the way back, a gradient that is too large for ``dtype``.
    """
    if dtype == torch.float32:
        return function(inputs.float())
    scale = _Scale(dtype)
    entered: Tensor = _Enter.apply(inputs, scale)
    left: Tensor = _Leave.apply(function(entered), scale)
    return left


def too_large(dtype: torch.dtype, what: str) -> AttackError:
    """What does not fit into a precision, and which setting to change."""
    name = str(dtype).removeprefix("torch.")
    return AttackError(
        "priors['diffusion']",
        expected=f"{what} that fit into {name}",
        got="NaN or infinite values",
        hint="Load the prior with precision='bfloat16', which has the range of "
        "float32, or with precision='float32'.",
    )


@dataclass(eq=False)
class _Scale:
    dtype: torch.dtype
    factor: Tensor = field(default_factory=lambda: torch.ones(()))
    sound: bool = True
    """What came in on the way back was finite."""


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, scale: _Scale) -> Tensor:
        ctx.scale, ctx.dtype = scale, inputs.dtype
        return inputs.to(scale.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        if ctx.scale.sound and not bool(gradient.isfinite().all()):
            raise too_large(ctx.scale.dtype, "gradients")
        return (gradient.float() / ctx.scale.factor).to(ctx.dtype), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, scale: _Scale) -> Tensor:
        ctx.scale = scale
        return outputs.float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        ctx.scale.sound = bool(gradient.isfinite().all())
        largest = gradient.abs().flatten(1).amax(1).clamp_min(1e-30)
        # A power of two, so that scaling itself rounds nothing.
        power = torch.exp2(-torch.log2(largest).ceil())
        factor = torch.where(largest.isfinite(), power, torch.ones_like(power))
        ctx.scale.factor = factor.view(-1, *[1] * (gradient.dim() - 1))
        return (gradient * ctx.scale.factor).to(ctx.scale.dtype), None
