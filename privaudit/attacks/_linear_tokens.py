"""From tokens back to patches, with or without a LayerNorm in between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._linear_norm import LastNorm
from privaudit.attacks._linear_patches import PatchMap
from privaudit.attacks._linear_smooth import PatchSets, smoothest

_TOLERANCES = (1e-5, 1e-4, 1e-3, 1e-2)
"""Of the largest singular value: what is below counts as lost, as noise drowns it."""
_UNREACHED = 1e-6
_OUTSIDE = 0.02
"""Root mean square distance from [0, 1] that noise may cause, not a wrong inverse."""
_READING = 5.0
"""Error of the mean square of a norm's output, in units of its rounding."""
_TRUSTED = 3.0
_MISREAD = 0.01


@dataclass(frozen=True, eq=False)
class Inverted:
    """Images out of tokens.

    Attributes:
        images: (batch, channels, height, width), not yet in [0, 1].
        lost: (batch,): directions of a patch that smoothness had to fill in.
    """

    images: Tensor
    lost: Tensor


def invert(found: PatchMap, tokens: Tensor, norm: LastNorm | None) -> Inverted:
    """The smoothest images whose tokens these are.

    Directions that the matrix all but loses turn noise into images far outside of
    [0, 1]; where that happens, they are filled in by smoothness instead.

    Args:
        found: The map from patches to what ``norm`` was given, or to the tokens.
        tokens: (batch, places, channels), float64 on the CPU.
        norm: The norm that the tokens came out of.
    """
    best = _at(found, tokens, norm, tolerance=_TOLERANCES[0])
    for tolerance in _TOLERANCES[1:]:
        poor = (_outside(best.images) > _OUTSIDE).nonzero().flatten()
        if not len(poor):
            break
        if found.rank(tolerance) == found.rank(_TOLERANCES[0]):
            continue
        other = _at(found, tokens[poor], norm, tolerance=tolerance)
        better = _outside(other.images) < _outside(best.images[poor])
        best.images[poor[better]] = other.images[better]
        best.lost[poor[better]] = other.lost[better]
    return best


def _outside(images: Tensor) -> Tensor:
    return (images - images.clamp(0, 1)).flatten(1).square().mean(1).sqrt()


def _at(
    found: PatchMap, tokens: Tensor, norm: LastNorm | None, *, tolerance: float
) -> Inverted:
    rank = found.rank(tolerance)
    sets = _plain(found, tokens, rank) if norm is None else _normed(
        found, tokens, norm, rank=rank
    )  # fmt: skip
    lost = torch.full((len(tokens),), found.matrix.shape[1] - rank)
    return Inverted(smoothest(sets), lost)


def _plain(found: PatchMap, tokens: Tensor, rank: int) -> PatchSets:
    base = (tokens - found.constants) @ found.inverse(rank).T
    nothing = base.new_zeros(*base.shape[:2], 0)
    own = base.new_zeros(*base.shape, 0)
    rows = base.new_zeros(*base.shape[:2], 0, 0)
    return PatchSets(found.patches, base, own, found.lost(rank), rows, nothing)


def _normed(found: PatchMap, tokens: Tensor, norm: LastNorm, *, rank: int) -> PatchSets:
    """Scale and mean of each token are open: ``W p + c = s·u + m·1``."""
    inverse = found.inverse(rank)
    direction = norm.direction(tokens)
    pair = torch.stack([direction, torch.ones_like(direction)], -1)
    own = inverse @ pair
    base = (-found.constants @ inverse.T).expand(len(tokens), -1, -1)
    noise = rounding(tokens)
    rows, pinned = _unreached(found, pair, noise)
    scale_rows, scales = _scale(norm, direction, noise)
    rows, pinned = torch.cat([rows, scale_rows], -2), torch.cat([pinned, scales], -1)
    return PatchSets(found.patches, base, own, found.lost(rank), rows, pinned)


def _unreached(found: PatchMap, pair: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """What no patch can add to a token must come from constants: it fixes s and m.

    Two equations a token, in units of the noise that their residual shows.
    """
    away = found.unreached(_UNREACHED)
    seen = away.T @ pair
    known = (found.constants @ away).expand(len(pair), -1, -1)
    gram = seen.transpose(-1, -2) @ seen
    power, ways = torch.linalg.eigh(gram)
    power = power.clamp_min(0)
    drawn = (ways.transpose(-1, -2) @ seen.transpose(-1, -2) @ known[..., None])[..., 0]
    size = power.sqrt()
    safe = size.clamp_min(1e-12)
    both = torch.linalg.lstsq(
        gram, (seen.transpose(-1, -2) @ known[..., None])
    ).solution
    rest = (seen @ both)[..., 0] - known
    sigma = rest.square().mean(-1) if known.shape[-1] > 2 else 0 * power[..., 0]
    least = noise * found.constants.square().mean().sqrt() + noise * 1e-3
    sigma = sigma.sqrt().clamp_min(float(least))[..., None]
    rows = size[..., None] * ways.transpose(-1, -2)
    return rows / sigma[..., None], drawn / safe / sigma


def _scale(norm: LastNorm, direction: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """The scale as the norm's ε gives it away: ``s² = ε / (1 - mean u²)``."""
    short = 1 - direction.square().mean(-1)
    error = _READING * noise
    partial = len(norm.kept) < norm.module.normalized_shape[0]
    misread = (short < -_TRUSTED * error).double().mean(1, keepdim=True) > _MISREAD
    usable = (short > _TRUSTED * error) & ~misread & (not partial)
    scale = (norm.module.eps / short.clamp_min(error)).sqrt()
    spread = scale * error / (2 * short.clamp_min(error))
    weight = torch.where(usable & (spread > 0), 1 / spread, 0.0)
    rows = torch.stack([weight, torch.zeros_like(weight)], -1)
    return rows[..., None, :], (weight * scale)[..., None]


def rounding(values: Tensor) -> float:
    """Half a unit in the last place of the type that these values fit into."""
    for kind in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(kind).to(values), values):
            return torch.finfo(kind).eps / 2
    return torch.finfo(torch.float32).eps / 2
