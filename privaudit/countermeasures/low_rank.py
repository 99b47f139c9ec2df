"""A linear layer's gradient is of low rank: that undoes pruning and takes off noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from privaudit.countermeasures._completion import complete
from privaudit.countermeasures._linear_layers import (
    LinearLayer,
    linear_layers,
    nearest,
    noise_beyond,
)
from privaudit.countermeasures.base import Countermeasure, SeenGradient
from privaudit.defenses.base import GRADIENT

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privaudit.defenses import Detection

FITS = 1e-3
"""Relative error on surviving entries beyond which a completion is not believed."""

SILENT = 3.0
"""Standard deviations of noise within which a unit counts as zero."""


class LowRank(Countermeasure):
    """Repairs the gradients of linear layers before any attack sees them.

    Such a gradient is ``Δᵀ X``, of no higher rank than the rows that the layer saw: one
    an image, where images are vectors. After pruning the surviving entries determine
    the others wherever they hang together; noise and rounding lose all but that rank.
    Closed forms then work as they do without a defense, and so does every search.
    Source: design of this project; completion Jain 2013.
    """

    name: ClassVar[str] = "low_rank"
    title: ClassVar[str] = "Low rank of linear layers"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset(
        {"gradient_pruning", "gaussian_noise", "laplace_noise", "quantisation"}
        | {"dp_sgd"}
    )
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    rank: ClassVar[int] = 20

    def see_gradient(
        self, seen: SeenGradient, found: Detection, generator: torch.Generator
    ) -> SeenGradient:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        layers = linear_layers(seen.target, seen.observation, generator)
        if not layers:
            note = "low rank: no linear layer saw few enough rows"
            return replace(seen, notes=(*seen.notes, note))
        if found.defense == "gradient_pruning":
            return _completed(seen, layers)
        if found.defense == "quantisation":
            seen = _with_zeros(seen)
        return _truncated(seen, layers)


def _completed(seen: SeenGradient, layers: Sequence[LinearLayer]) -> SeenGradient:
    gradients, notes = dict(seen.observation.gradients), []
    for layer in layers:
        joined = layer.joined(gradients)
        filled = complete(joined, layer.rank)
        before = float((joined != 0).double().mean())
        if filled.misfit > FITS or filled.known <= before:
            notes.append(f"{layer.weight}: not completed to rank {layer.rank}")
            continue
        gradients.update(layer.parted(filled.values, gradients))
        notes.append(f"{layer.weight}: {before:.1%} sent, {filled.known:.1%} known")
    observation = replace(seen.observation, gradients=gradients)
    note = f"low rank: {'; '.join(notes)}"
    return replace(seen, observation=observation, notes=(*seen.notes, note))


def _with_zeros(seen: SeenGradient) -> SeenGradient:
    """The level next to zero is zero: rounding moved what was dropped there."""
    gradients = dict(seen.observation.gradients)
    for name, value in gradients.items():
        if value.numel():
            nearest_zero = value.abs().min()
            gradients[name] = value * (value.abs() > nearest_zero * (1 + 1e-6))
    return replace(seen, observation=replace(seen.observation, gradients=gradients))


def _truncated(seen: SeenGradient, layers: Sequence[LinearLayer]) -> SeenGradient:
    gradients, removed = dict(seen.observation.gradients), 0.0
    for layer in layers:
        joined = layer.joined(gradients)
        lower = nearest(joined, layer.rank)
        noise = noise_beyond(joined, lower, layer.rank)
        if layer.rank == 1:
            lower = _silenced(lower, noise, layer)
        gradients.update(layer.parted(lower, gradients))
        removed += float((joined - lower).square().sum())
    kept = sum(float(g.double().square().sum()) for g in gradients.values())
    share = removed / (removed + kept) if removed else 0.0
    before = seen.target.noise_share
    left = max(0.0, before - share) / (1 - share) if share < 1 else 0.0
    note = f"low rank: {share:.1%} of the mean square taken off {len(layers)} layers"
    return SeenGradient(
        replace(seen.target, noise_share=left),
        replace(seen.observation, gradients=gradients),
        (*seen.notes, note),
    )


def _silenced(lower: Tensor, noise: float, layer: LinearLayer) -> Tensor:
    """Units that do not stand out of the noise are zero, as dropped ones would be.

    Attacks read masks off such zeros. Pixels are left alone: none is ever dropped.
    """
    rows = lower.norm(dim=1) > SILENT * noise
    columns = lower.norm(dim=0) > SILENT * noise
    if layer.bias is not None:
        columns[-1] = True
    if layer.first:
        columns[:] = True
    kept: Tensor = lower * rows[:, None] * columns
    return kept
