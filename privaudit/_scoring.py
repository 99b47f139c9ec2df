"""Reconstructions and truth → the records of a result, pictures included."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privaudit._align import assignment, mask_scores
from privaudit._controls import shipped_images
from privaudit._kept import UNREACHED
from privaudit._pixels import to_png
from privaudit._runner import AnyRun, Client, Subject, WaitingClient
from privaudit.attacks.base import INTERRUPTED
from privaudit.metrics import METRICS, Metric, Ssim
from privaudit.metrics._controls import picture_ladder, unrelated_pairs
from privaudit.metrics._curves import NO_RECONSTRUCTION, success_rate
from privaudit.result import (
    AttackRecord,
    CurvePoint,
    FormNote,
    Iterate,
    LadderStep,
    PriorRecord,
    SampleOutcome,
    SuccessRecord,
)
from privaudit.tape import Tape
from privaudit.types import Reconstruction
from privaudit.verdict import AttackEvidence, Partial, Score, UnrelatedPairs


@dataclass
class Pictures:
    """PNG files by name, and the float reconstructions by attack label."""

    bands: list[int] | None = None
    """Which bands to show, from 1; None: the first three."""
    files: dict[str, bytes] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, image: Tensor) -> str:
        """Keep one picture; returns its name."""
        self.files[name] = to_png(image, self.bands)
        return name


def partial_of(runs: Sequence[AnyRun], clients: Sequence[Subject]) -> Partial | None:
    """How far an audit came that was interrupted by hand; None where it was not."""
    for ran in runs:
        ended = [o.reason not in (INTERRUPTED, UNREACHED) for o in ran.outcomes]
        if not all(ended):
            sizes = [len(c.batch) for c in clients]
            done = sum(n for n, whole in zip(sizes, ended, strict=True) if whole)
            return Partial(attack=ran.attack.name, done=done, total=sum(sizes))
    return None


def attack_record(
    ran: AnyRun, clients: Sequence[Subject], pictures: Pictures, *, seed: int
) -> AttackRecord:
    """Score one attack on all images and keep its pictures."""
    label = ran.label
    truth = torch.cat([c.batch.images for c in clients]).detach().cpu()
    guess, present = _gather(ran, clients)
    if any(present):
        pictures.tensors[label] = guess
    names = _keep(label, truth, guess, present, pictures)
    scores = _scores(truth, guess, present)
    return AttackRecord(
        evidence=AttackEvidence(
            label=label,
            state=ran.state,
            required=ran.attack.required,
            diagnostic=ran.attack.diagnostic,
            skip="not applicable" if ran.state == "skipped" else None,
            reason=ran.reason,
            scores=scores,
        ),
        title=ran.attack.title,
        summary=(type(ran.attack).__doc__ or "").strip().split("\n\n")[0],
        settings=ran.attack.settings(),
        settings_given=ran.attack.settings_given(),
        seconds=ran.seconds,
        device=str(clients[0].batch.images.device),
        seed=seed,
        defense=ran.stance.defense,
        countermeasures=list(ran.stance.countermeasures),
        countermeasure_notes=list(ran.stance.notes),
        **_search(ran, clients, pictures),
        outcomes=_outcomes(ran, clients),
        prior=_prior(ran, truth, pictures),
        success=_success(scores),
        images=names["reconstruction"],
        differences=names["difference"],
    )


def _prior(ran: AnyRun, truth: Tensor, pictures: Pictures) -> PriorRecord | None:
    """The prior's card, and its own drawing against the first image."""
    first = next((o for o in ran.outcomes if o.prior is not None), None)
    if first is None or first.prior is None:
        return None
    if first.unguided is None:
        return PriorRecord(card=first.prior)
    drawn = first.unguided.detach().float().cpu().clamp(0, 1)
    (score,) = Ssim().score(truth[:1], drawn)
    name = f"images/{ran.label}-unguided.png"
    return PriorRecord(
        card=first.prior,
        unguided=pictures.add(name, drawn[0]),
        unguided_ssim=score.value,
    )


def _search(
    ran: AnyRun, clients: Sequence[Subject], pictures: Pictures
) -> dict[str, Any]:
    """How the optimisation went, if there was one: the fields that tell of it."""
    searches = [o.search for o in ran.outcomes if o.search is not None]
    fields: dict[str, Any] = {"label_accuracy": _label_accuracy(ran, clients)}
    if not searches:
        return fields
    first = searches[0]
    masks = mask_scores(_mask_pairs(ran, clients))
    return fields | {
        "iterations": sum(s.iterations for s in searches),
        "restarts": max(s.restarts for s in searches),
        "path": first.path,
        "optimised": first.unknowns,
        "loss_start": first.loss_start,
        "loss_final": max(s.loss_final for s in searches),
        "loss_truth": first.loss_truth,
        "curve": [
            CurvePoint(iteration=i, loss=v) for i, v in first.curve if math.isfinite(v)
        ],
        "iterates": [
            Iterate(
                iteration=i,
                image=pictures.add(f"images/{ran.label}-iterate-{i:05d}.png", picture),
            )
            for i, picture in first.pictures
        ],
        "masks": masks,
        "mask_mmd": _mean([m.mmd for m in masks]),
        "mask_trd": _mean([m.trd for m in masks]),
    }


def _mask_pairs(
    ran: AnyRun, clients: Sequence[Subject]
) -> list[tuple[Tape, Tape, Sequence[int]]]:
    return [
        (c.step.tape, o.masks, assignment(c.batch.images, o.images))
        for c, o in zip(clients, ran.outcomes, strict=True)
        if isinstance(c, Client | WaitingClient)
        and (o.masks is not None and o.images is not None and c.masks_known)
    ]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _label_accuracy(ran: AnyRun, clients: Sequence[Subject]) -> float | None:
    """Share of labels read off right, as multisets; None where none was read."""
    hits = total = 0
    for client, outcome in zip(clients, ran.outcomes, strict=True):
        truth, guess = client.batch.labels, outcome.labels
        if guess is None or truth is None or truth.is_floating_point():
            continue
        real, found = Counter(truth.flatten().tolist()), Counter(guess.tolist())
        hits += sum((real & found).values())
        total += sum(real.values())
    return hits / total if total else None


def _gather(ran: AnyRun, clients: Sequence[Subject]) -> tuple[Tensor, list[bool]]:
    """All reconstructions in sample order; grey where there is none."""
    parts, present = [], []
    for client, outcome in zip(clients, ran.outcomes, strict=True):
        images = outcome.images
        missing = images is None
        if images is None:
            images = torch.full_like(client.batch.images, 0.5)
        else:
            images = images[assignment(client.batch.images, images)]
        parts.append(images.detach().float().cpu().clamp(0, 1))
        present += [not missing] * len(client.batch)
    return torch.cat(parts), present


def _keep(
    label: str, truth: Tensor, guess: Tensor, present: list[bool], pictures: Pictures
) -> Mapping[str, list[str | None]]:
    names: dict[str, list[str | None]] = {"reconstruction": [], "difference": []}
    for i, there in enumerate(present):
        shown: tuple[str | None, str | None] = (None, None)
        if there:
            apart = (truth[i] - guess[i]).abs()
            shown = (
                pictures.add(f"images/{label}-{i:04d}.png", guess[i]),
                pictures.add(f"images/{label}-{i:04d}-difference.png", apart),
            )
        names["reconstruction"].append(shown[0])
        names["difference"].append(shown[1])
    return names


def _scores(
    truth: Tensor, guess: Tensor, present: list[bool]
) -> dict[str, list[Score]]:
    """Every metric; an image without a reconstruction has no value, not 0."""
    if not any(present):
        return {}
    scores = {}
    for name, cls in METRICS.items():
        metric = cls()
        if metric.unavailable():
            continue  # told once, for the whole audit
        if metric.scope == "set":
            if len(truth) > 1:
                scores[name] = _set_score(metric, truth, guess, present)
            continue
        measured = metric.score(truth, guess)
        scores[name] = [
            s if there else Score(value=None, note=NO_RECONSTRUCTION)
            for s, there in zip(measured, present, strict=True)
        ]
    return scores


def _success(scores: Mapping[str, list[Score]]) -> list[SuccessRecord]:
    """Success rates over the threshold, of similarities that some image has."""
    found = []
    for name, listed in scores.items():
        metric = METRICS[name]()
        similar = metric.scope == "image" and metric.bounds[1] == 1.0
        if not similar or metric.lower_is_leakier or len(listed) < 2:
            continue
        if any(s.value is not None for s in listed):
            curve = success_rate(metric, listed)
            fields = curve.model_dump(exclude={"unscored"})
            found.append(SuccessRecord.model_validate(fields))
    return found


def metrics_off() -> dict[str, str]:
    """Metrics that cannot be measured here, with the reason: off, not 0."""
    reasons = {name: cls().unavailable() for name, cls in METRICS.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def _set_score(
    metric: Metric, truth: Tensor, guess: Tensor, present: list[bool]
) -> list[Score]:
    if not all(present):
        note = f"{present.count(False)} of {len(present)} without a reconstruction"
        return [Score(value=None, note=note)]
    return metric.score(truth, guess)


def _outcomes(ran: AnyRun, clients: Sequence[Subject]) -> list[SampleOutcome]:
    return [
        _outcome(outcome, row if len(client.batch) == 1 else None)
        for client, outcome in zip(clients, ran.outcomes, strict=True)
        for row in range(len(client.batch))
    ]


def _outcome(outcome: Reconstruction, row: int | None) -> SampleOutcome:
    labels = outcome.labels
    return SampleOutcome(
        state=outcome.state,
        form=outcome.form,
        residual=outcome.residual,
        note="; ".join([outcome.reason, *outcome.notes]),
        forms=[
            FormNote(form=f.form, applied=f.applied, reason=f.reason)
            for f in outcome.forms
        ],
        # In a batch the labels are a multiset: they belong to no single image.
        label=None if labels is None or row is None else int(labels[row]),
    )


def ladder_records(
    image: Tensor, pictures: Pictures, *, generator: torch.Generator
) -> list[LadderStep]:
    """What SSIM .3 to .9 looks like on one of the user's own images."""
    if min(image.shape[-2:]) < 11:
        return []
    return [
        LadderStep(
            target=rung.target,
            ssim=rung.ssim,
            image=pictures.add(f"images/ladder-{rung.target:g}.png", rung.image),
        )
        for rung in picture_ladder(image, generator=generator)
    ]


def strangers(
    images: Tensor, pictures: Pictures, *, seed: int
) -> tuple[list[UnrelatedPairs], str]:
    """Negative control: what images score that have nothing to do with each other.

    Args:
        images: The user's, (batch, channels, height, width) in [0, 1].
        pictures: Gets one that is no image of the user's, to be shown beside.
        seed: Of the draw of pairs.

    Returns:
        One entry per metric of single images, and the name of the picture.
    """
    channels, height, width = images.shape[1:]
    others = shipped_images(64, (channels, height, width))
    generator = torch.Generator().manual_seed(seed)
    pairs = [
        unrelated_pairs(metric, images, others, generator=generator)
        for metric in (cls() for cls in METRICS.values())
        if metric.scope == "image"
        and not metric.identical_is_infinite
        and not metric.unavailable()
    ]
    return pairs, pictures.add("images/unrelated.png", others[-1])
