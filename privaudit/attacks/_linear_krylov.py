"""Conjugate gradients for a batch of systems, none of which waits on another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Operator = Callable[[Tensor], Tensor]

_TINY = 1e-30


def conjugate(
    curve: Operator,
    residual: Tensor,
    *,
    precondition: Operator = lambda r: r,
    steps: int,
    enough: float,
    go_on: Callable[[], bool] = lambda: True,
) -> Tensor:
    """Solve ``curve(x) = residual``, from 0, for each of a batch.

    Args:
        curve: Symmetric, positive semi-definite; (batch, …) to the same shape.
        residual: Right side, (batch, …).
        precondition: Rough inverse of ``curve``, symmetric as well.
        steps: How many at most.
        enough: A system rests once its residual has fallen to this share, in the norm
            of ``precondition``.
        go_on: Asked before every step; False ends all.

    Source: Hestenes 1952.
    """
    found = torch.zeros_like(residual)
    direction = ready = precondition(residual)
    size = _dot(residual, ready)
    goal = size * enough**2
    for _ in range(steps):
        active = size > goal
        if not bool(active.any()) or not go_on():
            break
        bent = curve(direction)
        step = active * size / _dot(direction, bent).clamp_min(_TINY)
        found = found + step * direction
        residual = residual - step * bent
        ready = precondition(residual)
        new = _dot(residual, ready)
        direction = ready + new / size.clamp_min(_TINY) * direction
        size = torch.where(active, new, size)
    return found


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """One number for each of the batch."""
    return (a * b).flatten(1).sum(1).view(-1, *[1] * (a.dim() - 1))
