"""The variational bottleneck of ``precode``, and how it gets into a model."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from privaudit.errors import ConfigError

LEAST, MOST = -10.0, 10.0
"""Of log σ²: beyond, its exponential leaves float32."""


class VariationalBottleneck(nn.Module):
    """``r → (μ, log σ²) → z = μ + σ·ε → r'``, all maps linear.

    ε is drawn in train mode only; afterwards z = μ, so that predictions do not waver.
    Source: Scheliga 2022, figure 2.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, 2 * size)
        self.decoder = nn.Linear(size, width)

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) → (…, width)."""
        mean, log_variance = _split(self.encoder(x))
        if self.training:
            mean = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        decoded: Tensor = self.decoder(mean)
        return decoded


def _split(encoded: Tensor) -> tuple[Tensor, Tensor]:
    """μ and log σ²."""
    mean, log_variance = encoded.chunk(2, -1)
    return mean, log_variance.clamp(LEAST, MOST)


@contextmanager
def watched(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects KL(N(μ, σ²) ‖ N(0, 1)), a mean over rows, of each forward pass.

    The module itself keeps nothing: it would hold what the client's images led to.
    """
    seen: list[Tensor] = []

    def look(_: nn.Module, __: Any, encoded: Tensor) -> None:
        mean, log_variance = _split(encoded)
        terms = mean.square() + log_variance.exp() - 1 - log_variance
        seen.append(0.5 * terms.sum(-1).mean())

    hooks = [m.encoder.register_forward_hook(look) for m in bottlenecks(model)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def bottlenecks(model: nn.Module) -> Iterator[VariationalBottleneck]:
    """Those that are in the model."""
    return (m for m in model.modules() if isinstance(m, VariationalBottleneck))


def with_bottleneck(
    model: nn.Module, size: int, generator: torch.Generator
) -> nn.Module:
    """A copy of ``model`` with one in front of its last linear layer.

    Raises:
        ConfigError: The model has no linear layer.
    """
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise ConfigError(
            "defense precode", expected="a model that ends in a linear layer",
            got=f"{type(model).__name__}, which has none",
            hint="The bottleneck stands in front of the classifier.",
        )  # fmt: skip
    changed = copy.deepcopy(model)
    if not linear[-1]:
        return nn.Sequential(*_pair(changed, size, generator))
    head, _, name = linear[-1].rpartition(".")
    parent = changed.get_submodule(head)
    classifier = changed.get_submodule(linear[-1])
    setattr(parent, name, nn.Sequential(*_pair(classifier, size, generator)))
    return changed


def _pair(
    classifier: nn.Module, size: int, generator: torch.Generator
) -> tuple[nn.Module, nn.Module]:
    weight: Tensor = classifier.weight  # type: ignore[assignment]
    with torch.random.fork_rng(devices=[]):
        module = VariationalBottleneck(weight.shape[1], size)
    for layer in (module.encoder, module.decoder):
        _draw(layer, generator)
    return module.to(weight.device, weight.dtype).train(classifier.training), classifier


def _draw(layer: nn.Linear, generator: torch.Generator) -> None:
    """Weights as torch draws them, U(−1/√fan_in, 1/√fan_in)."""
    bound = 1 / math.sqrt(layer.in_features)
    with torch.no_grad():
        for value in (layer.weight, layer.bias):
            drawn = torch.rand(value.shape, generator=generator)
            value.copy_((2 * drawn - 1) * bound)
