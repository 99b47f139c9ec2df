"""One audit of split inference, from sample to result. The model is pristine around."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from privaudit._clock import Clock
from privaudit._ladder import FEATURES
from privaudit._provenance import provenance
from privaudit._runner import Run
from privaudit._sample import Sample
from privaudit._scoring import (
    Pictures,
    attack_record,
    ladder_records,
    metrics_off,
    partial_of,
    strangers,
)
from privaudit.attacks import FeatureAttack
from privaudit.config import AuditConfig
from privaudit.defenses import Detection
from privaudit.exposure import FeatureExposure
from privaudit.inventory import Inventory
from privaudit.result import (
    AttackRecord,
    AuditRecord,
    AuditResult,
    ImageStore,
    PositiveControl,
    Preflight,
    SampleRecord,
    SkippedInput,
    SplitRecord,
    gather_evidence,
)
from privaudit.session.detecting import feature_detections
from privaudit.session.feature_controls import feature_control
from privaudit.session.feature_cut import OpenedCut
from privaudit.session.feature_runner import (
    Request,
    feature_error,
    observed,
    run_features,
)
from privaudit.session.feature_threat import feature_threat_model
from privaudit.session.prior_fit import with_fit
from privaudit.session.stances import (
    UNDEFENDED,
    Defended,
    FeatureView,
    about_defenses,
    feature_views,
    in_slots,
    with_stance,
)
from privaudit.types import Batch, FeatureObservation, FeatureTarget
from privaudit.verdict import judge

_LOOKED_AT = 8
"""Images whose features are looked at for traces of defenses."""


@dataclass
class FeatureSession:
    """What one audit knows about a cut model and its images before the first attack.

    Attributes:
        sent: (batch, …) features that were recorded elsewhere; None: made here.
        truth_known: False where their images are not: nothing is scored then.
        defended: What acts on features before they are sent, and what the attacker
            does about it.
    """

    model: nn.Module
    exposure: FeatureExposure
    sample: Sample
    config: AuditConfig
    opened: OpenedCut
    inventory: Inventory
    started: float
    public: Tensor | None = None
    priors: Mapping[str, object] = field(default_factory=dict)
    sent: Tensor | None = None
    truth_known: bool = True
    defended: Defended = UNDEFENDED

    @property
    def split(self) -> SplitRecord:
        """Where the model is cut."""
        return self.opened.record

    def total_flops(self) -> int | None:
        """Floating-point operations of the whole model, one image."""
        return self.opened.total_flops()

    def audit(self, attacks: Sequence[FeatureAttack]) -> AuditResult:
        """Attack, score, control, judge.

        Args:
            attacks: In the order of the ladder.
        """
        clock = Clock(self.config.budget, self.started)
        requests = self.requests()
        target = self.target()
        detections = self.detections(target, requests)
        views = feature_views(
            target, requests, detections, self.defended, seed=self.config.seed
        )
        check = self._preflight(views[0])
        pictures = Pictures(self.config.shown_bands)
        runs = self._climb(attacks, views, clock)
        records = [
            attack_record(r, requests, pictures, seed=self.config.seed) for r in runs
        ]
        records = (
            with_fit(records, views, self.sample.images, self.config.seed)
            if self.truth_known
            else [_unscored(r) for r in records]
        )
        ran = {r.attack.name: False for r in runs}
        ran |= {r.attack.name: True for r in runs if r.all_exact}
        records += FEATURES.not_run(attacks, ran)
        control = None if clock.cancelled else self._control(target, runs)
        pairs, stranger = strangers(self.sample.images, pictures, seed=self.config.seed)
        partial = partial_of(runs, requests)
        evidence = gather_evidence(
            len(requests), records, control, pairs,
            preflight=check, skipped=len(self.sample.skipped),
            truth_known=self.truth_known,
        ).model_copy(update={"partial": partial, "exposure": "features"})  # fmt: skip
        verdict = judge(evidence, self.config.policy)
        worst = verdict.worst.get("ssim")
        shown = 0 if worst is None or worst.sample is None else worst.sample
        generator = torch.Generator().manual_seed(self.config.seed)
        record = AuditRecord(
            verdict=verdict,
            metrics_off=metrics_off(),
            config=self.config,
            threat_model=with_stance(
                feature_threat_model(
                    self.split,
                    public=self.public,
                    priors=list(self.priors),
                    cards=[r.prior.card for r in records if r.prior is not None],
                ),
                views[0].stance,
            ),
            inventory=self._with_defenses(detections, views),
            preflight=check,
            exposure="features",
            truth_known=self.truth_known,
            split=self.split,
            samples=self._samples(requests, pictures),
            skipped_inputs=[
                SkippedInput(name=n, reason=r) for n, r in self.sample.skipped
            ],
            partial=partial,
            attacks=records,
            positive_control=control,
            unrelated=pairs,
            unrelated_image=stranger,
            ladder=ladder_records(
                self.sample.images[shown], pictures, generator=generator
            )
            if self.truth_known
            else [],
            ladder_sample=shown,
            provenance=provenance(
                self.model,
                self.sample.images,
                self.config.policy,
                device=str(requests[0].batch.images.device),
                seconds=time.monotonic() - self.started,
            ),
        )
        return AuditResult(record, ImageStore(pictures.files), pictures.tensors)

    def target(self) -> FeatureTarget:
        """What attacks are given."""
        return FeatureTarget(self.model, self.exposure, self.public, self.priors)

    def requests(self, *, turn: int = 0) -> list[Request]:
        """What devices sent, one image each.

        Args:
            turn: 1 sends the same images again, with other draws.
        """
        device = next(self.model.parameters(), torch.empty(0)).device
        made = []
        for index in range(len(self.sample.images)):
            batch = Batch(self.sample.images[index : index + 1].to(device), None)
            seen = (
                self.exposure.observe(
                    self.model, batch, defenses=self.defended.defenses,
                    seed=self.config.seed + 7919 * index + 104_729 * turn,
                )
                if self.sent is None
                else FeatureObservation(
                    self.sent[index : index + 1].to(device), batch.shape
                )
            )  # fmt: skip
            seen = in_slots(seen, self.opened.sent.shape, self.exposure.layout)
            rows = range(index, index + 1)
            made.append(Request(batch, seen, rows, self.truth_known))
        return made

    def detections(
        self, target: FeatureTarget, requests: Sequence[Request]
    ) -> list[Detection]:
        """Defenses that the attacker knows of: those stated, and those that show."""
        again = None
        if self.sent is None:
            few = replace(self.sample, images=self.sample.images[:_LOOKED_AT])
            again = observed(replace(self, sample=few).requests(turn=1)).features
        return feature_detections(
            target, observed(requests[:_LOOKED_AT]), again, self.defended.defenses
        )

    def looked_over(self) -> Inventory:
        """The inventory with the defenses that were stated, or that show."""
        found = self.detections(self.target(), self.requests())
        return self.inventory.model_copy(update={"detections": found})

    def untold(self) -> list[Detection]:
        """Defenses that show to an attacker whom nobody told of any."""
        again = observed(self.requests(turn=1)[:_LOOKED_AT]).features
        sent = observed(self.requests()[:_LOOKED_AT])
        found = feature_detections(self.target(), sent, again, ())
        return [d for d in found if d.found]

    def _climb(
        self,
        attacks: Sequence[FeatureAttack],
        views: Sequence[FeatureView],
        clock: Clock,
    ) -> list[Run[FeatureAttack]]:
        """Run the ladder; ``auto`` stops once everything is exact."""
        runs: list[Run[FeatureAttack]] = []
        rungs = [(attack, view) for view in views for attack in attacks]
        for number, (attack, view) in enumerate(rungs):
            if self.config.attacks == "auto" and any(r.all_exact for r in runs):
                break
            # An equal part for each rung that is left: the last is no worse than the
            # first, and a search that may go on for ever must not starve it.
            share = clock.share(len(rungs) - number)
            part = Clock(share) if share is not None else clock
            ran = run_features(
                attack, view.target, view.requests, clock=part, seed=self.config.seed
            )
            runs.append(replace(ran, stance=view.stance))
            if part.cancelled:
                clock.cancel()
        return runs

    def _control(
        self, target: FeatureTarget, runs: Sequence[Run[FeatureAttack]]
    ) -> PositiveControl:
        attacks = {r.attack.name: r.attack for r in runs if r.state != "skipped"}
        return feature_control(
            [a for a in attacks.values() if a.required and not a.diagnostic],
            self.sample.images.shape[1],
            budget=self.config.budget,
            seed=self.config.seed,
            device=next(self.model.parameters(), torch.empty(0)).device,
            priors=self.priors,
        )

    def _with_defenses(
        self, detections: Sequence[Detection], views: Sequence[FeatureView]
    ) -> Inventory:
        found = [*self.inventory.findings, *about_defenses(detections, views)]
        return self.inventory.model_copy(
            update={"findings": found, "detections": list(detections)}
        )

    def _preflight(self, view: FeatureView) -> Preflight:
        """Whether the features can be recomputed from the images themselves.

        Those that no defense has changed yet; of recorded ones, as the attacker who
        knows most looks at them.
        """
        first = view.requests[0]
        if not self.truth_known:
            return Preflight(
                replay_error=None,
                loss_at_truth=None,
                double_backward="not needed: one derivative is enough",
            )
        again = (
            feature_error(view.target, first, first.batch.images)
            if self.sent is not None
            else self._repeated(first.batch)
        )
        return Preflight(
            replay_error=None if self.sent is not None else again,
            loss_at_truth=again,
            double_backward="not needed: one derivative of the features is enough",
        )

    def _repeated(self, batch: Batch) -> float:
        """Relative difference of what the client part gives twice, undefended."""
        seen = self.exposure.observe(self.model, batch)
        request = Request(batch, seen, range(1))
        return feature_error(self.target(), request, batch.images)

    def _samples(
        self, requests: Sequence[Request], pictures: Pictures
    ) -> list[SampleRecord]:
        return [
            SampleRecord(
                index=index,
                name=self.sample.names[index],
                client=index,
                label=None,
                label_source="none",
                image=pictures.add(
                    f"images/original-{index:04d}.png", request.batch.images[0]
                )
                if self.truth_known
                else None,
            )
            for index, request in enumerate(requests)
        ]


def _unscored(record: AttackRecord) -> AttackRecord:
    """Without the images nothing is scored: a value against others would be made up."""
    bare = record.evidence.model_copy(update={"scores": {}})
    nothing = [None] * len(record.differences)
    return record.model_copy(update={"evidence": bare, "differences": nothing})
