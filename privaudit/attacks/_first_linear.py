"""First Linear layer, one row: its gradient is δ xᵀ, and x stands in it."""

from __future__ import annotations

import torch
from torch import Tensor

from privaudit.attacks._forms import EXACT, Attempt, no_gradient
from privaudit.attacks._masks import read_masks
from privaudit.attacks._scale import find_scale
from privaudit.attacks._scene import Scene
from privaudit.tape import Op

WITH_BIAS = "first linear layer with bias"
WITHOUT_BIAS = "first linear layer without bias"
NEARLY = 0.5
"""Share of the gradient beyond rank 1 up to which a picture is still worth making."""


def with_bias(scene: Scene) -> Attempt:
    """``x = (∂L/∂W)[k] / (∂L/∂b)[k]``, least squares over all rows k.

    Source: Phong 2017.
    """
    refusal = _refusal(WITH_BIAS, scene)
    if refusal is not None:
        return refusal
    first = scene.structure.first
    weight, bias = scene.gradient(first.weight), scene.gradient(first.bias)
    if weight is None or bias is None:
        missing = "weight" if weight is None else "bias"
        return Attempt(WITH_BIAS, False, f"the {missing} of {first.path} is not shared")
    if not weight.any() and not bias.any():
        return no_gradient(WITH_BIAS, first.path)
    power = bias.square().sum()
    if power == 0:
        return Attempt(WITH_BIAS, False, f"the bias gradient of {first.path} is zero")
    found = bias @ weight / power
    # A black image has a weight gradient of exactly zero: nothing is left over.
    rest = (weight - torch.outer(bias, found)).norm()
    residual = float(rest / weight.norm()) if weight.any() else 0.0
    if residual >= NEARLY:
        reason = f"the gradient of {first.path} is not of rank 1 ({residual:.1e})"
        return Attempt(WITH_BIAS, False, reason, residual=residual)
    image = scene.structure.inputs.invert(found.view(first.input.shape))
    reason = f"{first.path}: weight gradient divided by bias gradient"
    if residual >= EXACT:
        # Noise, rounding or a penalty on the weights: a picture all the same.
        reason += f"; approximate: {residual:.1e} of it is not of rank 1"
        return Attempt(WITH_BIAS, True, reason, image, residual)
    masks = read_masks(scene)
    return Attempt(WITH_BIAS, True, reason, image, residual, tape=masks.tape)


def without_bias(scene: Scene) -> Attempt:
    """The gradient gives x up to scale and sign; the rest of it fixes both.

    A bias that is frozen is as good as none: it is known, and not shared. The masks
    are read off first, then one number is searched.
    Source: design of this project; mask read-off Scheliga 2023, eq. 7.
    """
    refusal = _refusal(WITHOUT_BIAS, scene)
    if refusal is not None:
        return refusal
    first = scene.structure.first
    weight = scene.gradient(first.weight)
    if weight is None:
        return Attempt(WITHOUT_BIAS, False, f"the weight of {first.path} is not shared")
    if not weight.any():
        return no_gradient(WITHOUT_BIAS, first.path)
    direction, residual = _rank_one(weight)
    if residual >= NEARLY:
        reason = f"the gradient of {first.path} is not of rank 1 ({residual:.1e})"
        return Attempt(WITHOUT_BIAS, False, reason, residual=residual)
    masks = read_masks(scene)
    if masks.tape is None and not scene.clean:
        return Attempt(WITHOUT_BIAS, False, f"scale unknown: {masks.reason}")
    if scene.labels is None and scene.target.exposure.is_classification:
        return Attempt(WITHOUT_BIAS, False, "scale unknown: the label is not known")
    return find_scale(
        WITHOUT_BIAS, scene, direction.view(first.input.shape), masks.tape
    )


def _refusal(form: str, scene: Scene) -> Attempt | None:
    """The condition of this form that does not hold, or None."""
    first = scene.structure.first
    reason = _not_one_row(scene, first)
    wants_bias = form == WITH_BIAS
    if reason is None and wants_bias and first.bias is None:
        reason = f"{first.path} has no bias"
    if reason is None and not wants_bias and scene.gradient(first.bias) is not None:
        reason = f"{first.path} shares its bias: the form with bias applies"
    return None if reason is None else Attempt(form, False, reason)


def _not_one_row(scene: Scene, first: Op) -> str | None:
    if first.kind != "linear":
        return f"the first layer ({first.path}) is {first.function}, not linear"
    if not scene.structure.affine:
        return f"the input of {first.path} is not an affine function of the image"
    rows = first.input.numel() // first.input.shape[-1]
    if scene.observation.batch_size != 1:
        return f"needs a batch of 1, got {scene.observation.batch_size}"
    if rows != 1:
        return f"{first.path} sees {rows} rows an image; the form needs one"
    if first.weight is None:
        return f"the weight of {first.path} is not itself a parameter"
    if scene.structure.uses(first.weight) != 1:
        return f"the weight of {first.path} is used more than once"
    return scene.structure.dropped_input()


def _rank_one(gradient: Tensor) -> tuple[Tensor, float]:
    """Right singular vector of the largest singular value, and what is left over."""
    row = gradient[gradient.norm(dim=1).argmax()]
    direction = row / row.norm()
    for _ in range(8):
        direction = (gradient @ direction) @ gradient
        direction = direction / direction.norm()
    rest = gradient - torch.outer(gradient @ direction, direction)
    return direction, float(rest.norm() / gradient.norm())
