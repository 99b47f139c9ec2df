"""Labels read off the classifier's gradient, or a reason why they cannot be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from privaudit.attacks._scene import Scene

_ZERO = 1e-12
_ROUNDING = 0.25
"""A count further than this from a whole number is not trusted."""


@dataclass(frozen=True, eq=False)
class LabelGuess:
    """A multiset of class ids, or why there is none.

    Attributes:
        labels: (batch,), sorted; None when refused.
        confidence: 0 to 1.
        reason: How they were found, or why not.
    """

    labels: Tensor | None
    confidence: float
    reason: str


def infer_labels(scene: Scene) -> LabelGuess:
    """Read the labels of cross-entropy off the last linear layer.

    Batch 1: the one negative entry of the bias gradient (Zhao 2020), or the one row
    of the weight gradient that points the other way. Batches: counts
    n_c ≈ B·(mean p_c − g_c) (Wainakh 2021), or negative rows for distinct labels
    (Yin 2021). Several local steps: g is the mean over the steps.
    """
    if not scene.target.exposure.is_classification:
        return _refuse("the loss is the user's own: a class id may mean nothing here")
    if scene.labels is not None and scene.labels.is_floating_point():
        return _refuse("they are probabilities, and no class ids")
    op = scene.structure.classifier
    if op is None:
        return _refuse("the logits do not come from a linear layer")
    weight, bias = scene.gradient(op.weight), scene.gradient(op.bias)
    if scene.observation.batch_size == 1:
        return _single(weight, bias)
    if bias is None:
        return _refuse("a batch without a bias gradient: counts cannot be read")
    local = scene.target.exposure.local
    if local is None:
        return _counts(scene, bias)
    if local.weight is None:
        return _refuse(f"counts cannot be read: {local.words}")
    return _counts(scene, bias / local.weight)


def _refuse(reason: str) -> LabelGuess:
    return LabelGuess(None, 0.0, f"labels not recovered: {reason}")


def _single(weight: Tensor | None, bias: Tensor | None) -> LabelGuess:
    if bias is not None:
        signs, how = bias, "the bias gradient"
    elif weight is not None:
        # Rows are (p_c − y_c)·h: all of one sign but the label's.
        row = weight[weight.norm(dim=1).argmax()]
        signs, how = weight @ row, "the rows of the weight gradient"
        if (signs < 0).sum() > (signs > 0).sum():
            signs = -signs
        elif (signs < 0).sum() == (signs > 0).sum() == 1:
            return _refuse("two classes and no bias: both signs are possible")
    else:
        return _refuse("the classifier is not shared")
    top = float(signs.abs().max())
    if top < _ZERO:
        return _refuse(f"the model is already sure (max |g| = {top:.1e})")
    negative = (signs < 0).nonzero().flatten()
    if len(negative) != 1:
        return _refuse(f"{len(negative)} negative entries in {how}, expected 1")
    return LabelGuess(negative.cpu(), 1.0, f"the one negative entry of {how}")


def _counts(scene: Scene, bias: Tensor) -> LabelGuess:
    """n_c ≈ B·(mean p_c − g_c), the mean estimated on images of the attacker's own."""
    size = scene.observation.batch_size
    if float(bias.abs().max()) < _ZERO:
        return _refuse(f"gradients too small (max |g| = {float(bias.abs().max()):.1e})")
    logits = scene.structure.logits
    if logits is None:
        return _refuse("the logits are hidden")
    mean = F.softmax(logits.detach().double(), -1).mean(0)
    raw = size * (mean - bias)
    counts = raw.round().clamp_min(0).long()
    # Entries below zero are certain: p_c − n_c/B < 0 needs n_c > 0.
    counts = torch.maximum(counts, (bias < -_ZERO).long())
    off = float((raw - raw.round()).abs().max())
    if int(counts.sum()) != size or off > _ROUNDING:
        return _refuse(
            f"counts add up to {int(counts.sum())} for a batch of {size} "
            f"(furthest from whole: {off:.2f})"
        )
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts.cpu())
    confidence = max(0.0, 1.0 - off / 0.5)
    return LabelGuess(labels, confidence, "class counts from the bias gradient")
