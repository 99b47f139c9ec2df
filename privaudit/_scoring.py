"""Reconstructions and truth → the records of a result, pictures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privaudit._pixels import to_png
from privaudit._runner import Client, Run
from privaudit.metrics import METRICS, Metric
from privaudit.metrics._controls import picture_ladder
from privaudit.result import AttackRecord, FormNote, LadderStep, SampleOutcome
from privaudit.types import Reconstruction
from privaudit.verdict import AttackEvidence, Score


@dataclass
class Pictures:
    """PNG files by name, and the float reconstructions by attack label."""

    files: dict[str, bytes] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, image: Tensor) -> str:
        """Keep one picture; returns its name."""
        self.files[name] = to_png(image)
        return name


def attack_record(
    ran: Run, clients: Sequence[Client], pictures: Pictures, *, seed: int
) -> AttackRecord:
    """Score one attack on all images and keep its pictures."""
    label = ran.attack.name
    truth = torch.cat([c.batch.images for c in clients]).detach().cpu()
    guess, present = _gather(ran, clients)
    if any(present):
        pictures.tensors[label] = guess
    names = _keep(label, truth, guess, present, pictures)
    return AttackRecord(
        evidence=AttackEvidence(
            label=label,
            state=ran.state,
            required=ran.attack.required,
            diagnostic=ran.attack.diagnostic,
            skip="not applicable" if ran.state == "skipped" else None,
            reason=ran.reason,
            scores=_scores(truth, guess, present),
        ),
        title=ran.attack.title,
        summary=(type(ran.attack).__doc__ or "").strip().split("\n\n")[0],
        settings=ran.attack.settings(),
        settings_given=ran.attack.settings_given(),
        seconds=ran.seconds,
        device=str(clients[0].batch.images.device),
        seed=seed,
        outcomes=_outcomes(ran, clients),
        images=names["reconstruction"],
        differences=names["difference"],
    )


def _gather(ran: Run, clients: Sequence[Client]) -> tuple[Tensor, list[bool]]:
    """All reconstructions in sample order; grey where there is none."""
    parts, present = [], []
    for client, outcome in zip(clients, ran.outcomes, strict=True):
        images = outcome.images
        missing = images is None
        if images is None:
            images = torch.full_like(client.batch.images, 0.5)
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
        if metric.scope == "set":
            if len(truth) > 1:
                scores[name] = _set_score(metric, truth, guess, present)
            continue
        measured = metric.score(truth, guess)
        scores[name] = [
            s if there else Score(value=None, note="no reconstruction")
            for s, there in zip(measured, present, strict=True)
        ]
    return scores


def _set_score(
    metric: Metric, truth: Tensor, guess: Tensor, present: list[bool]
) -> list[Score]:
    if not all(present):
        note = f"{present.count(False)} of {len(present)} without a reconstruction"
        return [Score(value=None, note=note)]
    return metric.score(truth, guess)


def _outcomes(ran: Run, clients: Sequence[Client]) -> list[SampleOutcome]:
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
