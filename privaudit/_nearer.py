"""Of two answers of one attack, for each image the one that shows more."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from privaudit._align import assignment
from privaudit.metrics import Ssim
from privaudit.types import Batch, Reconstruction

NOTE = "{} of {} images are of the attack's other answer, which shows more"

SAME_IMAGE_MSE = 1e-4
"""An exact reconstruction is the client's image up to this mean squared error."""


def nearer(found: Reconstruction, batch: Batch) -> Reconstruction:
    """``found``, with images of its other answer where those show more.

    A better fit is a better image only where the gradient determines the image, and a
    verdict is about the one image that shows most. An attacker would keep both.
    """
    images, others = found.images, found.other
    if images is None or others is None:
        return found
    found = replace(found, other=None)
    truth, count = batch.images, len(images)
    if not bool(images.isfinite().all()):
        note = NOTE.format(count, count)
        return replace(found, images=others, notes=(*found.notes, note))
    mine, theirs = (assignment(truth, g.to(truth)) for g in (images, others))
    now = _closeness(truth, images.to(truth)[mine])
    before = _closeness(truth, others.to(truth)[theirs])
    counted = images.clone()
    swapped = [row for row in range(count) if before[row] > now[row]]
    for row in swapped:
        counted[mine[row]] = others[theirs[row]].to(counted)
    alike = max(-e for _, e in now) < SAME_IMAGE_MSE
    if not swapped or (found.state == "exact" and alike):
        return found
    note = NOTE.format(len(swapped), count)
    state = "plateau" if found.state == "exact" else found.state
    return replace(found, images=counted, state=state, notes=(*found.notes, note))


def _closeness(truth: Tensor, guess: Tensor) -> list[tuple[float, float]]:
    """(SSIM, less the mean squared error) of each pair; more is closer."""
    alike = [s.value for s in Ssim().score(truth, guess)]
    error = (guess - truth).square().flatten(1).mean(1).tolist()
    return [(0.0 if s is None else s, -e) for s, e in zip(alike, error, strict=True)]
