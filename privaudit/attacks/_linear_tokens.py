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
    """One image out of its tokens.

    Attributes:
        image: (1, channels, height, width), not yet in [0, 1].
        lost: Directions of a patch that smoothness had to fill in.
    """

    image: Tensor
    lost: int

    @property
    def outside(self) -> float:
        """Root mean square distance of the pixels from [0, 1]."""
        beyond = self.image - self.image.clamp(0, 1)
        return float(beyond.square().mean().sqrt())


def invert(found: PatchMap, tokens: Tensor, norm: LastNorm | None) -> Inverted:
    """The smoothest image whose tokens these are, up to their noise.

    Noise is what rounding makes it. Where the image then lies outside of [0, 1], there
    is more, and the level that leaves least outside is taken.

    Args:
        found: The map from patches to what ``norm`` was given, or to the tokens.
        tokens: (1, places, channels), float64 on the CPU.
        norm: The norm that the tokens came out of.
    """
    least = noise_of(tokens)
    best = _at(found, tokens, norm, noise=least)
    for noise in [level for level in _LEVELS if level > least]:
        if best.outside <= _OUTSIDE:
            break
        other = _at(found, tokens, norm, noise=noise)
        best = min(best, other, key=lambda i: i.outside)
    return best


def noise_of(tokens: Tensor) -> float:
    """Error of tokens as a share of their size, if they are only rounded."""
    return max(_STORED * rounding(tokens), _COMPUTED * torch.finfo(torch.float32).eps)


def _at(
    found: PatchMap, tokens: Tensor, norm: LastNorm | None, *, noise: float
) -> Inverted:
    """Each direction of a patch is known as well as its singular value lets it."""
    open_by = found.errors(noise * _size(found, tokens, norm))
    rank = int((open_by <= _HOPELESS).sum())
    inverse = found.inverse(rank)
    noticed = open_by > _NOTICED
    precision = torch.where(open_by > _HOPELESS, 0.0, 1 / open_by.square())[noticed]
    common = found.svd[2][:, noticed]
    if norm is None:
        base = (tokens - found.constants) @ inverse.T
        own, pins = base.new_zeros(*base.shape, 0), _no_pins(base)
    else:
        base = -found.constants[None] @ inverse.T
        own, pins = _normed(found, tokens, norm, inverse)
    sets = PatchSets(found.patches, base, own, common, *pins, precision)
    return Inverted(smoothest(sets), int((open_by > _FILLED).sum()))


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

    In units of the noise that is left when s and m explain what they can.
    """
    away = found.unreached(_UNREACHED)
    known = (found.constants @ away)[None, ..., None]
    left, values, right = torch.linalg.svd(away.T @ pair, full_matrices=False)
    drawn = left.mT @ known
    rest = (known - left @ drawn).square().mean((-2, -1), keepdim=True).sqrt()
    least = noise * float(found.constants.square().mean().sqrt() + 1e-3)
    sigma = rest.nan_to_num().clamp_min(least)
    return values[..., None] * right / sigma, (drawn / sigma)[..., 0]


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
