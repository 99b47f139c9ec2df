"""Runs attacks on features, and checks what they claim. No score is made here."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privaudit._clock import Clock
from privaudit._nearer import SAME_IMAGE_MSE, nearer
from privaudit._progress import labelled
from privaudit._runner import (
    CLAIM_TOLERANCE,
    CONVERGED,
    STATES,
    Run,
    fault_of,
)
from privaudit.attacks import FeatureAttack
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.types import (
    AttackState,
    Batch,
    FeatureObservation,
    FeatureTarget,
    Reconstruction,
)

TOGETHER_VALUES = 2**21
TOGETHER_IMAGES = 16
"""Pixels and images that are searched at once: what a batch of them needs in memory is
a multiple that depends on the model."""


@dataclass(frozen=True, eq=False)
class Request:
    """One image that a device looked at, and what it sent for it.

    Attributes:
        batch: The image, (1, C, H, W).
        observation: Its features, (1, …).
        rows: Its place among the images.
        truth_known: False for features that were recorded without their image: the
            batch then only has its shape.
    """

    batch: Batch
    observation: FeatureObservation
    rows: range
    truth_known: bool = True


def run_features(
    attack: FeatureAttack,
    target: FeatureTarget,
    requests: Sequence[Request],
    *,
    clock: Clock,
    seed: int,
) -> Run[FeatureAttack]:
    """Attack every request, as many at once as memory allows.

    Args:
        attack: The attack.
        target: Model, cut, and what the attacker has.
        requests: What devices sent.
        clock: Of the audit.
        seed: Of the attack's draws; each group has its own.
    """
    started = time.monotonic()
    outcomes: list[Reconstruction] = []
    groups = list(_groups(requests))
    for number, group in enumerate(groups):
        if clock.cancelled:
            outcomes += [Reconstruction(None, "stopped", INTERRUPTED)] * len(group)
            continue
        first = group[0].rows.start + 1
        name = f"{attack.name}, image {first}"
        name += f" to {first + len(group) - 1}" if len(group) > 1 else ""
        _warm(target, group)
        with labelled(f"{name} of {len(requests)}"):
            found = _group(
                attack, target, group,
                share=clock.share(len(groups) - number), seed=seed + number,
            )  # fmt: skip
        _remember(target, group, found)
        outcomes += [_counted(o, r) for o, r in zip(found, group, strict=True)]
        if any(o.reason == INTERRUPTED for o in found):
            clock.cancel()
    return Run(attack, outcomes, time.monotonic() - started)


def observed(requests: Sequence[Request]) -> FeatureObservation:
    """What several devices sent, as one batch."""
    first = requests[0].observation
    sent = torch.cat([r.observation.features for r in requests])
    return FeatureObservation(sent, first.image_shape)


def _groups(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    values = math.prod(requests[0].observation.image_shape)
    size = max(1, min(TOGETHER_IMAGES, TOGETHER_VALUES // values))
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


def _warm(target: FeatureTarget, group: Sequence[Request]) -> None:
    """Put the best images so far under ``start``, where each of the group has one."""
    best = [target.memory.get(f"best-{r.rows.start}") for r in group]
    target.memory.pop("start", None)
    known = [b for b in best if isinstance(b, _Best)]
    if len(known) == len(group):
        target.memory["start"] = torch.cat([b.images for b in known])


def _remember(
    target: FeatureTarget, group: Sequence[Request], found: Sequence[Reconstruction]
) -> None:
    """Keep what comes closest to the features; the truth has no say in it."""
    for request, outcome in zip(group, found, strict=True):
        if outcome.images is None:
            continue
        key = f"best-{request.rows.start}"
        for images in (outcome.images, outcome.other):
            if images is None:
                continue
            error = feature_error(target, request, images)
            known = target.memory.get(key)
            if not isinstance(known, _Best) or error < known.error:
                target.memory[key] = _Best(error, images.detach())


def _counted(outcome: Reconstruction, request: Request) -> Reconstruction:
    """Of two answers the one that shows more, where that can be told."""
    if request.truth_known:
        return nearer(outcome, request.batch)
    return replace(outcome, other=None)


@dataclass(frozen=True, eq=False)
class _Best:
    """The images of one request whose features are closest so far."""

    error: float
    images: Tensor


def _group(
    attack: FeatureAttack,
    target: FeatureTarget,
    group: Sequence[Request],
    *,
    share: Budget | None,
    seed: int,
) -> list[Reconstruction]:
    """One reconstruction per request of the group, each checked."""
    if share is None:
        none_left = Reconstruction(None, "stopped", "no time was left for this image")
        return [none_left] * len(group)
    seen = observed(group)
    try:
        generator = torch.Generator().manual_seed(seed)
        found = attack.run(target, seen, budget=share, generator=generator)
        if len(found) != len(group):
            raise ValueError(f"{len(found)} results for {len(group)} images")
        truth = torch.cat([r.batch.images for r in group])
        searched = any(o.search is not None for o in found)
        held = searched and all(r.truth_known for r in group)
        losses = attack.loss_at(target, seen, truth) if held else None
        known: Sequence[float | None] = losses or [None] * len(group)
        return [
            _checked(_converged(o, loss), target, r)
            for o, r, loss in zip(found, group, known, strict=True)
        ]
    except KeyboardInterrupt:
        return [Reconstruction(None, "stopped", INTERRUPTED)] * len(group)
    except Exception as error:  # noqa: BLE001  a plug-in may break in any way
        first = next(iter(str(error).splitlines()), "")
        broke = Reconstruction(None, "failed", f"{type(error).__name__}: {first}")
        return [broke] * len(group)


def _converged(outcome: Reconstruction, truth: float | None) -> Reconstruction:
    """Tell "converged" from "plateau" by the matching loss at the truth."""
    search = outcome.search
    if search is None or truth is None:
        claimed = outcome.state == "converged"
        return replace(outcome, state="plateau") if claimed else outcome
    gap = CONVERGED * (search.loss_start - truth)
    near = search.loss_final - truth <= gap
    state = outcome.state
    if state in ("plateau", "converged"):
        state = "converged" if near else "plateau"
    return replace(outcome, state=state, search=replace(search, loss_truth=truth))


def _checked(
    outcome: Reconstruction, target: FeatureTarget, request: Request
) -> Reconstruction:
    """Refuse what is no result, and hold a claim of exactness against the device."""
    if outcome.state not in STATES:
        reason = f"{outcome.state!r} is no way for an attack to end"
        return replace(outcome, images=None, state="failed", reason=reason)
    images = outcome.images
    if images is None:
        if outcome.state not in ("exact", "converged", "plateau"):
            return outcome
        reason = f"says {outcome.state}, but gives no image"
        return replace(outcome, state="failed", reason=reason)
    fault = fault_of(images, request.batch.images)
    if fault is not None:
        return replace(outcome, images=None, state="failed", reason=fault)
    if outcome.state == "skipped":
        return replace(outcome, state="failed", reason="says skipped, gives images")
    outcome = _other_checked(outcome, request)
    return _verified(outcome, target, request) if outcome.state == "exact" else outcome


def _other_checked(outcome: Reconstruction, request: Request) -> Reconstruction:
    """A second answer that is no picture is left out, and that is said."""
    if outcome.other is None:
        return outcome
    fault = fault_of(outcome.other, request.batch.images)
    if fault is None:
        return outcome
    note = f"its second answer was left out: {fault}"
    return replace(outcome, other=None, notes=(*outcome.notes, note))


def _verified(
    outcome: Reconstruction, target: FeatureTarget, request: Request
) -> Reconstruction:
    """Exact means: the image gives the features, and it is the device's."""
    images = outcome.images
    if images is None:
        return outcome
    apart = feature_error(target, request, images)
    short: AttackState = "failed" if outcome.search is None else "converged"
    if apart > CLAIM_TOLERANCE:
        reason = f"claims an exact match, but its features are {apart:.1e} off"
        return replace(outcome, state="failed", reason=reason, residual=apart)
    truth = request.batch.images
    if not request.truth_known:
        return replace(outcome, residual=apart)
    if float((images.to(truth) - truth).square().mean()) > SAME_IMAGE_MSE:
        reason = "matches the features with another image: they do not determine it"
        return replace(outcome, state=short, reason=reason, residual=apart)
    return outcome


def feature_error(target: FeatureTarget, request: Request, images: Tensor) -> float:
    """‖f(images) − h‖ / ‖h‖, the relative error of the recomputed features."""
    sent = request.observation.features
    with torch.no_grad():
        guess = target.exposure.predict(target.model, images.to(request.batch.images))
        guess, sent = target.compared(guess, sent)
    return float((guess - sent).norm() / sent.norm().clamp_min(1e-30))
