"""One audit from sample to result. The model is pristine around it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privaudit import _labels
from privaudit._controls import positive_control, shipped_images
from privaudit._ladder import not_run
from privaudit._precision import Precision
from privaudit._preflight import preflight
from privaudit._provenance import provenance
from privaudit._runner import (
    AnyClient,
    Client,
    Clock,
    Run,
    WaitingClient,
    run,
)
from privaudit._sample import Sample
from privaudit._scoring import (
    Pictures,
    attack_record,
    ladder_records,
    metrics_off,
    partial_of,
    strangers,
)
from privaudit._threat import threat_model
from privaudit.attacks import Attack
from privaudit.config import AuditConfig
from privaudit.defenses import Defense, Detection
from privaudit.exposure import GradientExposure
from privaudit.exposure.client_step import defended
from privaudit.inventory import Finding, Inventory, dropout_findings
from privaudit.result import (
    AttackRecord,
    AuditRecord,
    AuditResult,
    ImageStore,
    PositiveControl,
    Preflight,
    SampleRecord,
    SkippedInput,
    ThreatModel,
    gather_evidence,
)
from privaudit.session.detecting import gradient_detections
from privaudit.session.stances import (
    UNDEFENDED,
    Defended,
    GradientView,
    about_defenses,
    gradient_views,
    with_stance,
)
from privaudit.tape import Tape
from privaudit.types import AttackerKnowledge, Batch, Observation, Target
from privaudit.verdict import judge

if TYPE_CHECKING:
    from privaudit._resume import Resumed

KEPT_BYTES = 2**30
"""Gradients of clients that are kept; beyond it each is made again when needed."""


@dataclass
class Session:
    """What one audit knows about model and sample before the first attack."""

    model: nn.Module
    exposure: GradientExposure
    sample: Sample
    labels: _labels.Labels
    config: AuditConfig
    first: Client
    step_seconds: float
    inventory: Inventory
    started: float
    precision: Precision
    defended: Defended = UNDEFENDED

    @property
    def client_count(self) -> int:
        """How many clients the images make."""
        return math.ceil(len(self.sample.images) / self._client_size)

    @property
    def _client_size(self) -> int:
        """Images of one client, in all its steps."""
        return self.config.client.images_of(len(self.sample.images))

    def recomputed(self, tape: Tape) -> dict[str, Tensor]:
        """The gradient of the first client under the masks of ``tape``."""
        return self.exposure.gradient(self.model, self.first.batch, tape=tape)

    def audit(
        self, attacks: Sequence[Attack], resumed: Resumed | None = None
    ) -> AuditResult:
        """Attack, score, control, judge.

        Args:
            attacks: In the order of the ladder.
            resumed: What an earlier run finished; it is told what this one finishes.
        """
        clock = Clock(self.config.budget, self.started, kept=resumed)
        clients: list[AnyClient] = [self.first, *self._other_clients()]
        joint = self.config.knowledge.labels == "joint"
        known = AttackerKnowledge(joint=joint)
        target = Target(self.precision.model, self.exposure, known)
        detections = self._detections()
        views = gradient_views(
            target, self.first, detections, self.defended, seed=self.config.seed
        )
        check, doubts = self._preflight(views[0])
        pictures = Pictures(self.config.shown_bands)
        runs = self._climb(attacks, views, clients, clock)
        doubts = [*doubts, *about_defenses(detections, views)]
        doubts = [*doubts, *([] if resumed is None else resumed.findings())]
        records = [
            attack_record(r, clients, pictures, seed=self.config.seed) for r in runs
        ]
        records += self._not_run(attacks, runs)
        control = None if clock.cancelled else self._control(target, runs)
        pairs, stranger = strangers(self.sample.images, pictures, seed=self.config.seed)
        evidence = gather_evidence(
            len(self.sample.images),
            records,
            control,
            pairs,
            preflight=check,
            skipped=len(self.sample.skipped),
        ).model_copy(update={"partial": (partial := partial_of(runs, clients))})
        verdict = judge(evidence, self.config.policy)
        worst = verdict.worst.get("ssim")
        shown = 0 if worst is None or worst.sample is None else worst.sample
        generator = torch.Generator().manual_seed(self.config.seed)
        image = self.sample.images[shown]
        record = AuditRecord(
            verdict=verdict,
            metrics_off=metrics_off(),
            config=self.config,
            threat_model=with_stance(self._threat_model(), views[0].stance),
            inventory=self._with_findings(runs, doubts).model_copy(
                update={"detections": detections}
            ),
            preflight=check,
            samples=self._samples(clients, pictures),
            skipped_inputs=[
                SkippedInput(name=n, reason=r) for n, r in self.sample.skipped
            ],
            partial=partial,
            attacks=records,
            positive_control=control,
            unrelated=pairs,
            unrelated_image=stranger,
            ladder=ladder_records(image, pictures, generator=generator),
            ladder_sample=shown,
            provenance=provenance(
                self.model,
                self.sample.images,
                self.config.policy,
                device=str(self.first.batch.images.device),
                seconds=time.monotonic() - self.started,
            ),
        )
        return AuditResult(record, ImageStore(pictures.files), pictures.tensors)

    def _preflight(self, view: GradientView) -> tuple[Preflight, list[Finding]]:
        """Checks of the audit itself, on what the step gives before any defense."""
        return preflight(self.model, self.exposure, self.first)

    def _control(self, target: Target, runs: Sequence[Run[Attack]]) -> PositiveControl:
        """Every attack that decided has to solve a case that it must solve."""
        tried = [r for r in runs if r.state != "skipped" and _decides(r)]
        return positive_control(
            list({r.attack.name: r.attack for r in tried}.values()),
            target,
            self.first,
            budget=self.config.budget,
            seed=self.config.seed,
        )

    def _climb(
        self,
        attacks: Sequence[Attack],
        views: Sequence[GradientView],
        clients: Sequence[AnyClient],
        clock: Clock,
    ) -> list[Run[Attack]]:
        """Run the ladder; ``auto`` stops once everything is exact."""
        runs: list[Run[Attack]] = []
        known = self.config.knowledge.labels == "known"
        for view in views:
            # What can be resumed is kept by attack and client: the first view's.
            part = clock if view is views[0] else replace(clock, kept=None)
            for attack in attacks:
                if self.config.attacks == "auto" and any(r.all_exact for r in runs):
                    break
                ran = run(
                    attack, view.target, clients, labels_known=known, clock=part,
                    seed=self.config.seed, look=view.aimed if view.answers else None,
                )  # fmt: skip
                runs.append(replace(ran, stance=view.stance))
        return runs

    def looked_over(self) -> Inventory:
        """The inventory with the defenses that were stated, or that show."""
        found = self._detections()
        return self.inventory.model_copy(update={"detections": found})

    def untold(self) -> list[Detection]:
        """Defenses that show to an attacker whom nobody told of any."""
        return [d for d in self._looked(()) if d.found]

    def _detections(self) -> list[Detection]:
        """Defenses that the attacker knows of: those stated, and those that show."""
        if not self.defended.defenses:
            return []  # the gradient was made here, and nothing was done to it
        return self._looked(self.defended.defenses)

    def _looked(self, told: Sequence[Defense]) -> list[Detection]:
        labels = self.first.batch.labels
        shape = self.first.batch.shape
        images = shipped_images(len(self.first.batch), shape)
        own = Batch(images.to(self.first.batch.images), labels)
        return gradient_detections(
            [self.first.step.observation, *self._next_observations(3)],
            again=self._again(),
            # Under masks of its own: dropped units are zero in every client's step.
            reference=self.exposure.observe(
                self.model, own, seed=self.config.seed + 15_485_863
            ).clean.gradients,
            model=self.model,
            defenses=told,
        )

    def _next_observations(self, most: int) -> list[Observation]:
        """What the clients after the first send; no more steps than are looked at."""
        size, total = self._client_size, len(self.sample.images)
        starts = range(size, total, size)[:most]
        return [
            self._waiting(s, s + size, seed=self.config.seed + i).step.observation
            for i, s in enumerate(starts, 1)
        ]

    def _again(self) -> Observation | None:
        """The first client's step sent once more, with other draws of its defenses."""
        return defended(
            self.first.step, self.defended.defenses, exposure=self.exposure,
            model=self.model, batch=self.first.batch, seed=self.config.seed + 104_729,
        ).observation  # fmt: skip

    def _not_run(
        self, attacks: Sequence[Attack], runs: Sequence[Run[Attack]]
    ) -> list[AttackRecord]:
        ran = {r.attack.name: False for r in runs}
        return not_run(
            attacks, ran | {r.attack.name: True for r in runs if r.all_exact}
        )

    def _other_clients(self) -> list[AnyClient]:
        """All clients but the first; their steps are kept while there is room."""
        size, images = self._client_size, self.sample.images
        starts = range(size, len(images), size)
        gradients = self.first.step.observation.gradients.values()
        needed = len(starts) * sum(g.numel() * g.element_size() for g in gradients)
        waiting = [
            self._waiting(s, s + size, seed=self.config.seed + i)
            for i, s in enumerate(starts, 1)
        ]
        return [w.held() for w in waiting] if needed <= KEPT_BYTES else list(waiting)

    def _waiting(self, start: int, stop: int, *, seed: int) -> WaitingClient:
        batch = self._batch(start, stop)
        return WaitingClient(
            batch,
            lambda: defended(
                self.exposure.observe(self.model, batch, seed=seed),
                self.defended.defenses,
                exposure=self.exposure,
                model=self.model,
                batch=batch,
                seed=seed,
            ),
            range(start, start + len(batch)),
            noise_floor=self.first.noise_floor,
        )

    def _batch(self, start: int, stop: int) -> Batch:
        return batch_of(self.model, self.sample, self.labels, start, stop)

    def _samples(
        self, clients: Sequence[AnyClient], pictures: Pictures
    ) -> list[SampleRecord]:
        listed = []
        for number, client in enumerate(clients):
            for row, index in enumerate(client.rows):
                name = f"images/original-{index:04d}.png"
                listed.append(
                    SampleRecord(
                        index=index,
                        name=self.sample.names[index],
                        client=number,
                        label=self.labels.class_id(index),
                        label_source=self.labels.source,
                        image=pictures.add(name, client.batch.images[row]),
                    )
                )
        return listed

    def _with_findings(
        self, runs: Sequence[Run[Attack]], doubts: Sequence[Finding]
    ) -> Inventory:
        found = [*self.inventory.findings, *doubts]
        if self._client_size > 1 and not any(r.all_exact for r in runs):
            found.append(dropout_findings.batch_hides_closed_forms(self._client_size))
        found += [_note("sample", n) for n in self.sample.notes]
        found += self.labels.findings()
        drops = [c for c in self.inventory.stochastic if c.active and c.p is not None]
        for ran in runs:
            exact = [o for o in ran.outcomes if o.state == "exact"]
            if exact and drops:
                images = sum(len(o.images) for o in exact if o.images is not None)
                found.insert(
                    0,
                    dropout_findings.dropout_tells_samples_apart(
                        drops, images, len(self.sample.images)
                    )
                    if ran.attack.name == "sparse_factorization"
                    else dropout_findings.dropout_does_not_protect(
                        drops, exact[0].form, images
                    ),
                )
                break
        return self.inventory.model_copy(update={"findings": found})

    def _threat_model(self) -> ThreatModel:
        return threat_model(
            self.config,
            images=self._client_size,
            trainable=self.inventory.trainable,
            gradient=self.precision.gradient,
        )


def batch_of(
    model: nn.Module, sample: Sample, labels: _labels.Labels, start: int, stop: int
) -> Batch:
    """Some of the images, with their labels, where the model is."""
    device = next(model.parameters()).device
    images = sample.images[start:stop].to(device)
    return Batch(images, labels.rows(start, stop, device))


def _decides(ran: Run[Attack]) -> bool:
    """Whether the verdict rests on this attack, so that it has to prove itself."""
    return (ran.attack.required or ran.all_exact) and not ran.attack.diagnostic


def _note(where: str, text: str) -> Finding:
    return Finding(
        code="input-note", severity="info", where=where, title="Note on the input",
        text=text,
    )  # fmt: skip
