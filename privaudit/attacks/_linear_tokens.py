"""From tokens back to patches, with or without a LayerNorm in between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._linear_norm import LastNorm
from privaudit.attacks._linear_patches import PatchMap
from privaudit.attacks._linear_smooth import PatchSets, smoothest

_LEVELS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Noise of the tokens, as a share of their size, to be tried where there is more than
rounding."""
_STORED, _COMPUTED = 0.5, 4.0
"""Errors of a token in units of its rounding, and at least in those of float32."""
_UNREACHED = 1e-6
_NOTICED, _FILLED, _HOPELESS = 0.002, 0.05, 1.0
"""Errors of a pixel from which on smoothness is asked, decides, and is alone."""
_OUTSIDE = 0.001
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
    """The smoothest images whose tokens these are, up to their noise.

    Noise is what rounding makes it. Where the images then lie far outside of [0, 1],
    there is more, and the level that leaves least outside is taken.

    Args:
        found: The map from patches to what ``norm`` was given, or to the tokens.
        tokens: (batch, places, channels), float64 on the CPU.
        norm: The norm that the tokens came out of.
    """
    least = noise_of(tokens)
    best = _at(found, tokens, norm, noise=least)
    for noise in [level for level in _LEVELS if level > least]:
        poor = (_outside(best.images) > _OUTSIDE).nonzero().flatten()
        if not len(poor):
            break
        other = _at(found, tokens[poor], norm, noise=noise)
        better = _outside(other.images) < _outside(best.images[poor])
        best.images[poor[better]] = other.images[better]
        best.lost[poor[better]] = other.lost[better]
    return best


def noise_of(tokens: Tensor) -> float:
    """Error of tokens as a share of their size, if they are only rounded."""
    return max(_STORED * rounding(tokens), _COMPUTED * torch.finfo(torch.float32).eps)


def _outside(images: Tensor) -> Tensor:
    return (images - images.clamp(0, 1)).flatten(1).square().mean(1).sqrt()


def _at(
    found: PatchMap, tokens: Tensor, norm: LastNorm | None, *, noise: float
) -> Inverted:
    """Each direction of a patch is known as well as its singular value lets it."""
    open_by = found.errors(noise * _size(found, tokens, norm))
    rank = int((open_by <= _HOPELESS).sum())
    inverse = found.inverse(rank)
    soft = open_by > _NOTICED
    hopeless = open_by > _HOPELESS
    precision = torch.where(hopeless, 0.0, 1 / open_by.square())[soft]
    common = found.svd[2][:, soft]
    if norm is None:
        base = (tokens - found.constants) @ inverse.T
        own, pins = base.new_zeros(*base.shape, 0), _no_pins(base)
    else:
        base = (-found.constants @ inverse.T).expand(len(tokens), -1, -1)
        own, pins = _normed(found, tokens, norm, inverse)
    sets = PatchSets(found.patches, base, own, common, *pins, precision)
    lost = torch.full((len(tokens),), int((open_by > _FILLED).sum()))
    return Inverted(smoothest(sets), lost)


def _size(found: PatchMap, tokens: Tensor, norm: LastNorm | None) -> float:
    """Root mean square of what leaves the matrix, or would for black and white."""
    if norm is None:
        return float(tokens.square().mean().sqrt())
    black, white = found.constants, found.matrix.sum(1) + found.constants
    return float(torch.cat([black, white]).square().mean().sqrt())


def _no_pins(base: Tensor) -> tuple[Tensor, Tensor]:
    shape = base.shape[:2]
    return base.new_zeros(*shape, 0, 0), base.new_zeros(*shape, 0)


def _normed(
    found: PatchMap, tokens: Tensor, norm: LastNorm, inverse: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Scale and mean of each token are open: ``W p + c = s·u + m·1``."""
    direction = norm.direction(tokens)
    pair = torch.stack([direction, torch.ones_like(direction)], -1)
    noise = rounding(tokens)
    rows, pinned = _unreached(found, pair, noise)
    scale_rows, scales = _scale(norm, direction, noise)
    pins = torch.cat([rows, scale_rows], -2), torch.cat([pinned, scales], -1)
    return inverse @ pair, pins


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
