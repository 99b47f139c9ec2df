"""What the batch norms of a model are given during a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from privaudit.priors import NormInput
from privaudit.tape import readable


class NormWatch:
    """Observer that collects the input of every batch norm with running statistics.

    Args:
        model: Gives the running statistics as they are before the pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self._running = running_statistics(model)
        self.seen: list[NormInput] = []

    def __call__(
        self,
        path: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Any,
    ) -> None:
        """See one call of the forward pass."""
        if func is torch.batch_norm and path in self._running:
            self.seen.append(NormInput(args[0], *self._running[path]))


def running_statistics(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Running mean and variance per batch norm, by its path."""
    found = {}
    for name, module in model.named_modules():
        mean = getattr(module, "running_mean", None)
        var = getattr(module, "running_var", None)
        batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if batch_norm and isinstance(mean, Tensor) and isinstance(var, Tensor):
            found[readable(name) or type(model).__name__] = (
                mean.detach(),
                var.detach(),
            )
    return found
