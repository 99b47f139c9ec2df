"""Scales of a batch from the later layers: probabilities first, then every gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from privaudit.attacks._row_scale import images_of
from privaudit.attacks._scene import Scene
from privaudit.attacks._unfold import Unfolded, classifier_columns, on_model, still
from privaudit.exposure.predict import observed_as, predict
from privaudit.types import Batch

_ROUNDS = 30
_SLOPES = 4


def scale_by_probabilities(scene: Scene, images: Tensor, found: Unfolded) -> Tensor:
    """Scale each image so that the logits explain the classifier's gradient.

    Behind layers without bias the logits grow with the image. The gradient holds p up
    to a factor for all classes but the label's, and log p is a line in the logits: its
    slope is what the image must be multiplied by. With biases in between the line is
    bent, and a few rounds lead there.

    Args:
        scene: The observation.
        images: (batch, channels, height, width), right up to a positive factor each.
        found: Their masks and labels.
    """
    if found.labels is None or found.labels.is_floating_point():
        return images
    exposure, model = scene.target.exposure, scene.target.model
    zero = images_of(scene, torch.zeros_like(scene.structure.first.input[:1]))
    tape = found.tape
    if tape is None:
        tape = scene.structure.tape.with_values(still(scene.structure.tape))
    for _ in range(_SLOPES):
        delta = classifier_columns(scene, images, [d.value for d in tape])
        batch = Batch(on_model(scene, images), found.labels)
        logits = exposure.replay(model, batch, tape)
        if delta is None or logits is None:
            return images
        factor = [
            _slope(delta[:, i].cpu(), logits[i].double().cpu(), int(found.labels[i]))
            for i in range(len(images))
        ]
        images = zero + torch.stack(factor).view(-1, 1, 1, 1) * (images - zero)
    return images


def _slope(delta: Tensor, logits: Tensor, label: int) -> Tensor:
    """Of log p against the logits, over the classes that are not the label."""
    others = torch.arange(len(delta)) != label
    y, x = delta[others].clamp_min(1e-300).log(), logits[others]
    # Small probabilities are rounding: weigh by what they are.
    w = delta[others].clamp_min(0)
    w = w / w.sum().clamp_min(1e-300)
    x, y = x - (w * x).sum(), y - (w * y).sum()
    return ((w * x * y).sum() / (w * x * x).sum().clamp_min(1e-300)).clamp(0.05, 20)


def match_scales(scene: Scene, images: Tensor, found: Unfolded) -> Tensor:
    """Move each image along its own direction until the gradient is matched.

    Minimises the squared relative error of the gradient over one factor an image, by
    L-BFGS; the best iterate is returned, the start among them.

    Args:
        scene: The observation.
        images: (batch, channels, height, width), near enough that masks and labels
            are right.
        found: Those.
    """
    target = scene.target
    zero = images_of(scene, torch.zeros_like(scene.structure.first.input[:1]))
    labels = scene.labels if found.labels is None else found.labels
    shift = torch.zeros(len(images), dtype=torch.double, requires_grad=True)
    start, observed = images, None
    best, kept = float("inf"), images

    def error() -> Tensor:
        nonlocal observed, best, kept
        moved = zero + (1 + shift).view(-1, 1, 1, 1) * (start - zero)
        batch = Batch(on_model(scene, moved), labels)
        guess = predict(target.exposure, target.model, batch, found.tape)
        if observed is None:
            observed = observed_as(guess, scene.observation.gradients)
        size = observed.square()
        apart = guess.square() - 2 * guess.inner(observed) + size
        loss = (apart / size).double()
        if float(loss.detach()) < best:
            best, kept = float(loss.detach()), moved.detach()
        return loss

    optimiser = torch.optim.LBFGS(
        [shift], max_iter=_ROUNDS, line_search_fn="strong_wolfe", tolerance_grad=1e-12
    )

    def closure() -> Tensor:
        loss = error()
        (shift.grad,) = torch.autograd.grad(loss, [shift])
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return kept
