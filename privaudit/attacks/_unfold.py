"""Layer by layer from the first inputs of a batch to every mask and label.

Once the inputs A of a linear layer are known for every sample, its gradient ``Δ A``
gives Δ, one column a sample; the zeros of a column are that sample's mask behind the
layer. With the mask the next layer's inputs are known, and so on to the classifier,
whose Δ is the difference of probabilities and labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._hidden import next_layer, row_space, rows_by_zeros
from privaudit.attacks._masks import producer
from privaudit.attacks._scene import Scene
from privaudit.tape import Op, StopTrace, Tape, Tracer
from privaudit.types import Batch

_SIGMAS = 30.0
_FLOOR = 1e-6
_FLOOR_WITH_ROWS = 1e-5
_UNEXPLAINED = 1e-2
_EXPLAINED = 1e-5
_DOUBT = 4.0
_DOUBTS = 24
"""Entries within e⁴ of the edge are in doubt; at most so many are tried."""
_NEGATIVE = 1e-6


@dataclass(frozen=True, eq=False)
class Unfolded:
    """What follows from the first inputs of a batch.

    Attributes:
        tape: Every mask of the step; None where one does not show.
        labels: (batch,) class ids, or the probabilities that are known, in the order
            of the images; None where the loss is the user's own or the classifier
            does not show.
        reason: What is missing, and why.
    """

    tape: Tape | None
    labels: Tensor | None
    reason: str = ""


def unfold(scene: Scene, images: Tensor) -> Unfolded:
    """Masks and labels of the step on ``images``, in their order.

    Args:
        scene: The observation; its labels are used as a multiset at most.
        images: (batch, channels, height, width), as far as they are known by now.
    """
    structure, local = scene.structure, scene.target.exposure.local
    if local is not None:
        return Unfolded(None, None, local.words)
    values = still(structure.tape)
    unknown = [
        i for i, d in enumerate(structure.tape) if d.is_mask and 0 < (d.p or 0) < 1
    ]
    sites = {s.draw: s for s in structure.sites}
    before = {i: producer(scene, sites[i]) if i in sites else None for i in unknown}
    rows: dict[int, Tensor] = {}
    for index in sorted(unknown, key=lambda i: _place(scene, before[i])):
        op, name = before[index], structure.tape.draws[index].name
        if op is None:
            reason = f"{name} does not follow a linear layer on one row an image"
            return Unfolded(None, None, reason)
        inputs = rows.get(_place(scene, op))
        if inputs is None:
            inputs = inputs_of(scene, images, values, op)
        kept = _kept(scene, inputs, op, rows)
        if kept is None:
            return Unfolded(None, None, f"the gradient of {op.path} is not explained")
        shape = sites[index].output.shape
        like = structure.tape.draws[index].value
        values[index] = kept.value.view(shape).to(images if like is None else like)
        if kept.doubtful:
            _settle(scene, images, values, index=index, doubtful=kept.doubtful)
    tape = structure.tape.with_values(values) if len(structure.tape) else None
    labels = _labels(scene, images, values)
    if labels is None and scene.target.exposure.is_classification:
        return Unfolded(tape, None, "the classifier's gradient does not give labels")
    return Unfolded(tape, labels)


def on_model(scene: Scene, images: Tensor) -> Tensor:
    """Images as the model takes them: the algebra here is float64 on the CPU."""
    return images.float().to(next(scene.target.model.parameters()).device)


def still(tape: Tape) -> list[Tensor | None]:
    """Values that leave everything as it is: masks keep all, noise is zero."""
    return [
        d.value if d.is_mask or d.value is None else torch.zeros_like(d.value)
        for d in tape
    ]


def inputs_of(
    scene: Scene, images: Tensor, values: Sequence[Tensor | None], op: Op
) -> Tensor:
    """(batch, in) float64: what ``op`` is given for ``images`` under masks."""
    structure = scene.structure
    place = _place(scene, op)
    tracer = Tracer(scene.target.model, stop_after=place + 1)
    tape = structure.tape.with_values(values) if len(structure.tape) else None
    if scene.target.exposure.local is not None:
        tape = None  # of all steps; this is one pass, in which nothing is dropped
    batch = Batch(on_model(scene, images), _some_labels(scene, len(images)))
    with suppress(StopTrace):
        scene.target.exposure.trace(scene.target.model, batch, tracer, tape=tape)
    return tracer.ops[place].input.detach().double().reshape(len(images), -1)


def columns(gradient: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor, float]:
    """Δ with ``gradient = Δ inputs``, its rounding error, and what is unexplained.

    Args:
        gradient: (out, in).
        inputs: (batch, in).

    Returns:
        (out, batch); (batch,) standard error of a column's entries; relative rest.
    """
    inverse = torch.linalg.pinv(inputs)
    delta = gradient @ inverse
    rest = gradient - delta @ inputs
    error = rest.norm() / rest.numel() ** 0.5 * inverse.norm(dim=0)
    return delta, error, float(rest.norm() / gradient.norm().clamp_min(1e-300))


@dataclass(frozen=True, eq=False)
class _Kept:
    """Which outputs of a layer have a gradient, or go on.

    Attributes:
        value: (batch, out) of booleans.
        doubtful: Places near the edge of rounding, nearest first.
    """

    value: Tensor
    doubtful: list[tuple[int, int]]


def _kept(
    scene: Scene, inputs: Tensor, op: Op, rows: dict[int, Tensor]
) -> _Kept | None:
    """The mask behind ``op``, from its gradient and from what the next layer got.

    GELU's slope is nearly zero at one place: a unit there has no gradient that shows,
    but the next layer got its value. Where that layer's gradient gives its inputs,
    they go into ``rows``: directions are enough for zeros, and owe nothing to scales.
    """
    gradient = scene.gradient(op.weight)
    if gradient is None or not gradient.any():
        return None
    delta, error, rest = columns(gradient, inputs.to(gradient.device))
    if rest > _UNEXPLAINED:
        return None
    after = next_layer(scene, op)
    space = row_space(scene, after, len(inputs))
    floor = _FLOOR if space is None else _FLOOR_WITH_ROWS
    least = torch.maximum(_SIGMAS * error, floor * delta.abs().amax(0))
    kept = (delta.abs() > least).T
    if space is None:
        away = (delta.abs() / least).clamp_min(1e-300).log().abs().T
        near = (away < _DOUBT).nonzero().tolist()
        near.sort(key=lambda place: float(away[place[0], place[1]]))
        return _Kept(kept, [(b, unit) for b, unit in near[:_DOUBTS]])
    found = rows_by_zeros(space, ~kept.cpu())
    rows[_place(scene, after)] = found
    return _Kept(kept | (found != 0).to(kept.device), [])


def _settle(
    scene: Scene,
    images: Tensor,
    values: list[Tensor | None],
    *,
    index: int,
    doubtful: Sequence[tuple[int, int]],
) -> None:
    """Turn doubtful entries of a mask over where the classifier's gradient says so.

    Args:
        scene: The observation.
        images: The batch.
        values: Of all draws; the mask at ``index`` is changed in place.
        index: Of the draw.
        doubtful: (sample, unit) of the mask.
    """
    op, mask = scene.structure.classifier, values[index]
    gradient = None if op is None else scene.gradient(op.weight)
    if op is None or gradient is None or mask is None:
        return
    mask = mask.clone()
    values[index] = mask
    flat = mask.view(len(images), -1)

    def unexplained() -> float:
        inputs = inputs_of(scene, images, values, op).to(gradient.device)
        return columns(gradient, inputs)[2]

    rest = unexplained()
    for sample, unit in doubtful:
        if rest < _EXPLAINED:
            break
        flat[sample, unit] = 1 - flat[sample, unit]
        now = unexplained()
        if now < rest:
            rest = now
        else:
            flat[sample, unit] = 1 - flat[sample, unit]


def classifier_columns(
    scene: Scene, images: Tensor, values: Sequence[Tensor | None]
) -> Tensor | None:
    """(classes, batch): (p - y) / batch of each sample, where it shows."""
    op = scene.structure.classifier
    gradient = None if op is None else scene.gradient(op.weight)
    if op is None or gradient is None or not scene.target.exposure.is_classification:
        return None
    inputs = inputs_of(scene, images, values, op).to(gradient.device)
    delta, _, rest = columns(gradient, inputs)
    return None if rest > _UNEXPLAINED else delta


def _labels(
    scene: Scene, images: Tensor, values: Sequence[Tensor | None]
) -> Tensor | None:
    delta = classifier_columns(scene, images, values)
    if delta is None:
        return None
    if scene.labels is not None and scene.labels.is_floating_point():
        return _soft_labels(scene, images, values, delta)
    # p - y has one negative entry, that of the label: scale plays no part.
    negative = delta < -_NEGATIVE * delta.abs().amax(0)
    return delta.argmin(0) if bool((negative.sum(0) == 1).all()) else None


def _soft_labels(
    scene: Scene, images: Tensor, values: Sequence[Tensor | None], delta: Tensor
) -> Tensor | None:
    """Known probabilities in the order of the images: whose p - y points along δ."""
    from scipy.optimize import linear_sum_assignment

    known, tape = scene.labels, scene.structure.tape.with_values(values)
    exposure, model = scene.target.exposure, scene.target.model
    logits = exposure.replay(model, Batch(on_model(scene, images), known), tape)
    if known is None or logits is None:
        return None
    away = logits.double().softmax(-1)[:, None] - known.double()[None]
    fit = torch.nn.functional.cosine_similarity(away, delta.T[:, None], dim=-1)
    _, order = linear_sum_assignment(fit.cpu().numpy(), maximize=True)
    return known[torch.as_tensor(order, device=known.device)]


def _some_labels(scene: Scene, count: int) -> Tensor:
    """Any labels will do for a forward pass."""
    if scene.labels is not None and len(scene.labels) == count:
        return scene.labels
    device = next(scene.target.model.parameters()).device
    return torch.zeros(count, dtype=torch.long, device=device)


def _place(scene: Scene, op: Op | None) -> int:
    return next((i for i, o in enumerate(scene.structure.ops) if o is op), -1)
