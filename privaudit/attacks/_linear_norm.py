"""A LayerNorm as the last step before the cut, and what it leaves of its input.

``z = s·u + m·1``: of each token the features show the direction u; mean m and scale s
are divided out. The norm's ε keeps a trace of s, as |u|² is C·var/(var + ε), not C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privaudit.attacks._linear_map import ImageMap, random_images
from privaudit.attacks._linear_patches import Tokens, has_places, tokens_of
from privaudit.types import FeatureLayout

_AGREES = 1e-4
_SILENT = 1e-4
"""Gains below this share of the largest show nothing of their channel."""

Given = tuple[nn.LayerNorm, int, Tensor]
"""A norm, which of its calls, what it was given."""


@dataclass(frozen=True, eq=False)
class LastNorm:
    """The LayerNorm that the features come out of.

    Attributes:
        module: The norm.
        call: Which call of it in one forward pass, from 0.
        kept: (c,) channels whose gain is not zero.
        gain: (c,) of these, float64 on the CPU.
        shift: (c,).
    """

    module: nn.LayerNorm
    call: int
    kept: Tensor
    gain: Tensor
    shift: Tensor

    def direction(self, tokens: Tensor) -> Tensor:
        """(batch, places, c): u, from the features."""
        return (tokens[..., self.kept] - self.shift) / self.gain

    def before(self, image_map: ImageMap) -> Tokens:
        """What goes into the norm, as a function of images."""
        layout = image_map.target.exposure.layout

        def tokens(images: Tensor) -> Tensor:
            calls = [v for m, v in _inputs(image_map, images) if m is self.module]
            return tokens_of(calls[self.call], layout)[..., self.kept]

        return tokens


def find_norm(image_map: ImageMap, generator: torch.Generator) -> LastNorm | None:
    """The norm whose output the features are; None where there is none.

    It is found by value: its formula, applied to what goes in, gives the features.
    """
    noise, _ = random_images(image_map, generator)
    layout = image_map.target.exposure.layout
    features = image_map(noise)
    if not has_places(features, layout):
        return None
    seen = _inputs(image_map, noise)
    for index, (module, inputs) in reversed(list(enumerate(seen))):
        if inputs.shape == features.shape and _makes(module, inputs, features, layout):
            return _norm(module, sum(m is module for m, _ in seen[:index]))
    return None


def _inputs(image_map: ImageMap, images: Tensor) -> list[tuple[nn.LayerNorm, Tensor]]:
    """What every LayerNorm was given on the way to the cut, call by call."""
    seen: list[tuple[nn.LayerNorm, Tensor]] = []

    def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
        if isinstance(module, nn.LayerNorm) and given:
            seen.append((module, given[0].detach().clone()))

    modules = image_map.target.model.modules()
    norms = [m for m in modules if isinstance(m, nn.LayerNorm)]
    handles = [m.register_forward_pre_hook(hook) for m in norms]
    try:
        image_map(images)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _makes(
    module: nn.LayerNorm, inputs: Tensor, features: Tensor, layout: FeatureLayout
) -> bool:
    places, real = tokens_of(inputs, layout), tokens_of(features, layout)
    if tuple(module.normalized_shape) != (places.shape[-1],):
        return False
    norm = _norm(module, 0)
    spread = (places.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
    direction = (places - places.mean(-1, keepdim=True)) / spread
    made = direction[..., norm.kept] * norm.gain + norm.shift
    gap = made - real[..., norm.kept]
    return bool(gap.norm() <= _AGREES * real.norm())


def _norm(module: nn.LayerNorm, call: int) -> LastNorm:
    ones = torch.ones(module.normalized_shape[0], dtype=torch.float64)
    given: tuple[Tensor | None, ...] = (module.weight, module.bias)
    gain, shift = (None if g is None else g.detach().cpu().double() for g in given)
    gain = ones if gain is None else gain
    shift = torch.zeros_like(ones) if shift is None else shift
    kept = (gain.abs() > _SILENT * gain.abs().max()).nonzero().flatten()
    return LastNorm(module, call, kept, gain[kept], shift[kept])
