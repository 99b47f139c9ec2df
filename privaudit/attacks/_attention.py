"""First attention projection: every token lies in the row space of its gradient.

∂L/∂W_qkv = Σ_t δ_t n_tᵀ with n_t = γ ∘ (u_t − mean u_t)/σ_t + β, the normalised
token. "n_t lies in that row space" is linear in the patch p_t (and in σ_t where
β ≠ 0), because u_t = W p_t + c_t. No position embedding needs to be shared.
Source: design of this project.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._forms import Attempt, no_gradient
from privaudit.attacks._patches import fold, patches_of, token_gradient, unfold
from privaudit.attacks._scene import Scene, feeds
from privaudit.exposure import shared_parameters
from privaudit.tape import Op, same_data
from privaudit.types import Batch

ATTENTION = "first attention projection"
_AFFINE_TOLERANCE = 1e-4
_RANK_GAP = 10.0
_LOOSE = 1e-4


@dataclass(frozen=True, eq=False)
class _Parts:
    """The three calls that the form reads, and the tokens' offset.

    Attributes:
        patch: The patch embedding.
        norm: The first LayerNorm behind it.
        projections: Linear layers on the norm's output.
        skipped: Tokens before the patches (class token, registers).
    """

    patch: Op
    norm: Op
    projections: list[Op]
    skipped: int


def attention_projection(scene: Scene) -> Attempt:
    """Recover all patches from the row space of the first projection's gradient."""
    found = _parts(scene)
    if isinstance(found, str):
        return Attempt(ATTENTION, False, found)
    gradients = [scene.gradient(op.weight) for op in found.projections]
    shared = [g for g in gradients if g is not None]
    if not shared:
        return Attempt(ATTENTION, False, "the attention projection is not shared")
    stacked = torch.cat(shared)
    if not stacked.any():
        return no_gradient(ATTENTION, found.projections[0].path)
    return _solve(scene, found, stacked)


def _solve(scene: Scene, parts: _Parts, gradient: Tensor) -> Attempt:
    count, width = token_gradient(parts.patch, parts.patch.output).shape
    total = count + parts.skipped
    weight, constant = _affine(scene, parts)
    scale, shift = _norm_parameters(scene, parts.norm, width)
    unknowns = weight.shape[1] + bool(shift.any())
    if width - total - 1 < unknowns:
        reason = (
            f"{unknowns} unknowns a patch, but only {width} - {total} - 1 equations"
        )
        return Attempt(ATTENTION, False, reason)
    outside, clear = _projector_outside(gradient, total)
    centre = torch.eye(width, dtype=weight.dtype, device=weight.device) - 1 / width
    lift = outside @ (scale[:, None] * centre)
    columns = [lift @ weight]
    if shift.any():
        columns.append((outside @ shift)[:, None])
    right = -lift @ constant.T
    matrix = torch.cat(columns, 1)
    solved, loose = _least_squares(matrix, right)
    patches = solved[: weight.shape[1]].T
    # What is left of the tokens outside the row space, relative to the tokens.
    tokens = (patches @ weight.T + constant) @ centre * scale
    residual = float((matrix @ solved - right).norm() / tokens.norm())
    image = scene.structure.inputs.invert(fold(parts.patch, patches))
    whole = scene.recomputed_error(image, None)
    reason = f"{parts.projections[0].path}: {count} patches from its row space"
    if not clear:
        reason += f"; approximate: {total} tokens, but its rank in float32 is lower"
    if loose:
        reason += (
            f"; approximate: {loose} of {unknowns} directions of a patch stay open, "
            "since the other tokens span them"
        )
    unique = (clear and not loose) or whole is not None
    residual = residual if whole is None else whole
    return Attempt(ATTENTION, True, reason, image, residual, unique)


def _least_squares(matrix: Tensor, right: Tensor) -> tuple[Tensor, int]:
    """The shortest least-squares solution, and how many directions it leaves open.

    Where positions depend on each other linearly, as smooth ones do, a mix of tokens
    is a mix of patches alone: then the row space holds more than the tokens.
    """
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    firm = s > _LOOSE * s[0]
    solved: Tensor = vh[firm].T @ ((u[:, firm].T @ right) / s[firm, None])
    return solved, int((~firm).sum())


def _projector_outside(gradient: Tensor, rank: int) -> tuple[Tensor, bool]:
    """Projection on what is orthogonal to the leading ``rank`` right vectors.

    Returns:
        The projection, and whether the rank stands clear of the rounding behind it.
    """
    s: Tensor
    vh: Tensor
    _, s, vh = torch.linalg.svd(gradient, full_matrices=False)
    inside = vh[:rank]
    eye = torch.eye(gradient.shape[1], dtype=gradient.dtype, device=gradient.device)
    outside: Tensor = eye - inside.T @ inside
    clear = len(s) <= rank or bool(s[rank - 1] > _RANK_GAP * s[rank])
    return outside, clear


def _affine(scene: Scene, parts: _Parts) -> tuple[Tensor, Tensor]:
    """W (width, values per patch) and c (patches, width) with u_t = W p_t + c_t."""
    op = parts.patch
    weight = shared_parameters(scene.target.model)[op.weight or ""].detach()
    weight = weight.double().flatten(1)
    patches = unfold(op, op.input.detach()).double()
    normed = _patch_tokens(parts.norm.input.detach(), parts.skipped).double()
    return weight, normed - patches @ weight.T


def _patch_tokens(data: Tensor, skipped: int) -> Tensor:
    return data.reshape(-1, data.shape[-1])[skipped:]


def _norm_parameters(scene: Scene, norm: Op, width: int) -> tuple[Tensor, Tensor]:
    parameters = dict(scene.target.model.named_parameters())
    like = norm.input.detach().double()
    scale, shift = like.new_ones(width), like.new_zeros(width)
    if norm.weight is not None:
        scale = parameters[norm.weight].detach().double()
    if norm.bias is not None:
        shift = parameters[norm.bias].detach().double()
    return scale, shift


def _parts(scene: Scene) -> _Parts | str:
    """The calls this form reads, or the condition that does not hold."""
    structure = scene.structure
    first = structure.first
    if first.kind not in ("conv2d", "linear") or not patches_of(first):
        return f"the first layer ({first.path}) is not a patch embedding"
    if scene.observation.batch_size != 1:
        return f"needs a batch of 1, got {scene.observation.batch_size}"
    if not structure.affine or first.weight not in shared_parameters(
        scene.target.model
    ):
        return f"the weight or the input of {first.path} is not known"
    if structure.uses(first.weight) != 1:
        return f"the weight of {first.path} is used more than once"
    dropped = structure.dropped_input()
    if dropped is not None:
        return dropped
    norm = next((op for op in structure.ops if op.kind == "layer_norm"), None)
    if norm is None:
        return "there is no LayerNorm behind the patch embedding"
    projections = [
        op for op in structure.ops
        if op.kind == "linear" and same_data(op.input, norm.output)
    ]  # fmt: skip
    if not projections:
        return f"no linear layer takes the output of {norm.path}"
    tokens = token_gradient(first, first.output)
    skipped = norm.input.numel() // norm.input.shape[-1] - len(tokens)
    if norm.input.shape[-1] != tokens.shape[1] or skipped < 0:
        return f"the tokens of {norm.path} are not those of {first.path}"
    parts = _Parts(first, norm, projections, skipped)
    return _broken(scene, parts) or parts


def _broken(scene: Scene, parts: _Parts) -> str | None:
    """What stands between the embedding and the norm."""
    for site in scene.structure.sites:
        draw = scene.structure.tape.draws[site.draw]
        if draw.active and feeds(site.output, parts.norm.input):
            return f"dropout ({draw.name}) acts between embedding and {parts.norm.path}"
    inputs = scene.structure.inputs
    other = inputs.blank(0.25).requires_grad_()
    from privaudit.tape import Tracer

    tracer = Tracer(scene.target.model)
    batch = Batch(other, inputs.labels)
    scene.target.exposure.trace(scene.target.model, batch, tracer)
    norm = next(op for op in tracer.ops if op.kind == "layer_norm")
    with torch.no_grad():
        moved = _patch_tokens(norm.input, parts.skipped) - _patch_tokens(
            parts.norm.input, parts.skipped
        )
        patch = token_gradient(tracer.ops[0], tracer.ops[0].output)
        expected = patch - token_gradient(parts.patch, parts.patch.output)
    if (moved - expected).norm() > _AFFINE_TOLERANCE * expected.norm():
        return f"the tokens change on their way from {parts.patch.path} to the norm"
    return None
