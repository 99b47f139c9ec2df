"""Patch embedding with a learned position embedding: all patches in closed form.

The position embedding is added to the tokens, so its gradient *is* the gradient δ_t
at each token; and ∂L/∂W = Σ_t δ_t p_tᵀ is linear in the patches p_t. Dropout behind
it masks both sides alike and changes nothing.
Source: Lu 2021 (APRIL).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit._autograd import partials
from privaudit.attacks._forms import EXACT, Attempt, no_gradient
from privaudit.attacks._patches import fold, patches_of, token_gradient
from privaudit.attacks._scene import Scene
from privaudit.exposure import shared_parameters
from privaudit.tape import Op

POSITION = "patch embedding with learned position embedding"
_RIDGE = 1e-6
_RANK_TOLERANCE = 1e-6


def position_embedding(scene: Scene) -> Attempt:
    """Solve ``δᵀ P = ∂L/∂W`` for the patches P by least squares in float64."""
    reason = _refusal(scene)
    if reason is not None:
        return Attempt(POSITION, False, reason)
    first = scene.structure.first
    weight = scene.gradient(first.weight)
    located = _located(scene, first)
    if weight is None:
        return Attempt(POSITION, False, f"the weight of {first.path} is not shared")
    if located is None and not weight.any():
        return no_gradient(POSITION, first.path)
    if located is None:
        reason = "no shared position embedding has the gradient of the patch tokens"
        return Attempt(POSITION, False, reason)
    name, rows = located
    tokens = scene.gradient(name)
    if tokens is None:
        return Attempt(POSITION, False, f"{name} is not shared")
    delta = tokens.reshape(-1, tokens.shape[-1])[rows]
    if not delta.any():
        return no_gradient(POSITION, f"{first.path} and {name}")
    return _solve(scene, delta, weight.flatten(1), name=name)


def learned_position(scene: Scene) -> str | None:
    """Name of the shared position embedding of a patch embedding; None: none seen."""
    first = scene.structure.first
    if first.weight is None or not patches_of(first):
        return None
    located = _located(scene, first)
    return None if located is None else located[0]


def _solve(scene: Scene, delta: Tensor, weight: Tensor, *, name: str) -> Attempt:
    first = scene.structure.first
    # An SVD, so that a deficient rank is seen and said.
    u, s, vh = torch.linalg.svd(delta.T, full_matrices=False)
    full = bool(s[-1] > _RANK_TOLERANCE * s[0]) and len(delta) <= delta.shape[1]
    inverse = 1 / s if full else s / (s.square() + _RIDGE * s[0] ** 2)
    patches = vh.T @ (inverse[:, None] * (u.T @ weight))
    # Black patches have a weight gradient of exactly zero: nothing is left over.
    rest = (delta.T @ patches - weight).norm()
    residual = float(rest / weight.norm()) if weight.any() else 0.0
    image = scene.structure.inputs.invert(fold(first, patches))
    reason = f"{first.path}: {len(delta)} patches from its gradient and {name}'s"
    if not full:
        reason += (
            f"; approximate: {len(delta)} patches, {delta.shape[1]} equations of rank "
            f"{int((s > _RANK_TOLERANCE * s[0]).sum())}"
        )
    elif residual >= EXACT:
        reason += f"; approximate: they do not fit all equations ({residual:.1e})"
    return Attempt(POSITION, True, reason, image, residual, unique=full)


def _refusal(scene: Scene) -> str | None:
    first = scene.structure.first
    if first.kind not in ("conv2d", "linear") or not patches_of(first):
        return f"the first layer ({first.path}) is not a patch embedding"
    if not scene.structure.affine:
        return f"the input of {first.path} is not an affine function of the image"
    if scene.observation.batch_size != 1:
        return (
            f"needs a batch of 1, got {scene.observation.batch_size}: the position "
            "embedding's gradient is a sum over the batch"
        )
    if first.weight is None:
        return f"the weight of {first.path} is not itself a parameter"
    if scene.structure.uses(first.weight) != 1:
        return f"the weight of {first.path} is used more than once"
    return scene.structure.dropped_input()


@dataclass(frozen=True)
class _Place:
    """Where the tokens' gradient stands: parameter and rows; None: nowhere."""

    found: tuple[str, slice] | None


def _located(scene: Scene, first: Op) -> tuple[str, slice] | None:
    """Look once per audit: the place is the model's, not the client's."""
    key = f"{_Place.__name__} of {sorted(scene.observation.gradients)}"
    known = scene.target.memory.get(key)
    if not isinstance(known, _Place):
        known = _Place(_locate(scene, first))
        scene.target.memory[key] = known
    return known.found


def _locate(scene: Scene, first: Op) -> tuple[str, slice] | None:
    """Find the parameter whose gradient is that of the tokens, by trying it.

    The attacker runs a step of their own, where the gradient at each token is known,
    and looks for a parameter with the same gradient: no name is guessed.
    """
    structure = scene.structure
    parameters = shared_parameters(scene.target.model)
    width = token_gradient(first, first.output).shape[1]
    names = [
        n
        for n in scene.observation.gradients
        if n in parameters and parameters[n].shape[-1] == width
        and parameters[n].dim() <= 3 and n != first.weight
    ]  # fmt: skip
    if not names:
        return None
    wanted = [first.output, *(parameters[n] for n in names)]
    out, *found = partials(structure.loss, wanted)
    if out is None or not out.any():
        return None
    out = out.sum(0, keepdim=True)  # as the embedding sums over a batch
    tokens = token_gradient(first, out)
    for name, gradient in zip(names, found, strict=True):
        rows = None if gradient is None else _rows(gradient, tokens)
        if rows is not None:
            return name, rows
    return None


def _rows(gradient: Tensor, tokens: Tensor) -> slice | None:
    """Which rows of ``gradient`` are the tokens' (class tokens may stand before)."""
    table = gradient.reshape(-1, gradient.shape[-1])
    spare = len(table) - len(tokens)
    if spare < 0:
        return None
    for start in {spare, 0}:
        rows = slice(start, start + len(tokens))
        apart = (table[rows] - tokens).norm()
        if float(apart) <= EXACT * float(tokens.norm()):
            return rows
    return None
