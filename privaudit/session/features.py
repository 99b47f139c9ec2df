"""One audit of split inference, from sample to result. The model is pristine around."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._clock import Clock
from privaudit._controls import shipped_images
from privaudit._ladder import FEATURES
from privaudit._pixels import Normalisation, check_bands, to_range
from privaudit._provenance import provenance
from privaudit._runner import Run
from privaudit._sample import Sample, read_sample
from privaudit._scoring import (
    Pictures,
    attack_record,
    ladder_records,
    metrics_off,
    partial_of,
    strangers,
)
from privaudit._shape import expected_channels, stated_input_shape
from privaudit.attacks import FeatureAttack
from privaudit.config import AuditConfig
from privaudit.errors import ConfigError
from privaudit.exposure import FeatureExposure
from privaudit.exposure.output import input_keyword
from privaudit.inventory import Finding, Inventory
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
from privaudit.session.feature_controls import feature_control
from privaudit.session.feature_cut import OpenedCut, opened_cut
from privaudit.session.feature_runner import Request, feature_error, run_features
from privaudit.session.feature_threat import feature_threat_model
from privaudit.session.prior_fit import with_fit
from privaudit.types import Batch, FeatureObservation, FeatureTarget
from privaudit.verdict import judge


@dataclass
class FeatureSession:
    """What one audit knows about a cut model and its images before the first attack.

    Attributes:
        sent: (batch, …) features that were recorded elsewhere; None: made here.
        truth_known: False where their images are not: nothing is scored then.
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
        check = self._preflight(target, requests)
        pictures = Pictures(self.config.shown_bands)
        runs = self._climb(attacks, target, requests, clock)
        records = [
            attack_record(r, requests, pictures, seed=self.config.seed) for r in runs
        ]
        records = (
            with_fit(records, target, self.sample.images, self.config.seed)
            if self.truth_known
            else [_unscored(r) for r in records]
        )
        ran = {r.attack.name: r.all_exact for r in runs}
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
            threat_model=feature_threat_model(
                self.split,
                public=self.public,
                priors=list(self.priors),
                cards=[r.prior.card for r in records if r.prior is not None],
            ),
            inventory=self.inventory,
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

    def requests(self) -> list[Request]:
        """What devices sent, one image each."""
        device = next(self.model.parameters(), torch.empty(0)).device
        made = []
        for index in range(len(self.sample.images)):
            batch = Batch(self.sample.images[index : index + 1].to(device), None)
            seen = (
                self.exposure.observe(self.model, batch)
                if self.sent is None
                else FeatureObservation(
                    self.sent[index : index + 1].to(device), batch.shape
                )
            )
            rows = range(index, index + 1)
            made.append(Request(batch, seen, rows, self.truth_known))
        return made

    def _climb(
        self,
        attacks: Sequence[FeatureAttack],
        target: FeatureTarget,
        requests: Sequence[Request],
        clock: Clock,
    ) -> list[Run[FeatureAttack]]:
        """Run the ladder; ``auto`` stops once everything is exact."""
        runs: list[Run[FeatureAttack]] = []
        for number, attack in enumerate(attacks):
            if self.config.attacks == "auto" and any(r.all_exact for r in runs):
                break
            # An equal part for each rung that is left: the last is no worse than the
            # first, and a search that may go on for ever must not starve it.
            share = clock.share(len(attacks) - number)
            part = Clock(share) if share is not None else clock
            runs.append(
                run_features(
                    attack, target, requests, clock=part, seed=self.config.seed
                )
            )
            if part.cancelled:
                clock.cancel()
        return runs

    def _control(
        self, target: FeatureTarget, runs: Sequence[Run[FeatureAttack]]
    ) -> PositiveControl:
        attacks = [r.attack for r in runs if r.state != "skipped"]
        return feature_control(
            [a for a in attacks if a.required and not a.diagnostic],
            self.sample.images.shape[1],
            budget=self.config.budget,
            seed=self.config.seed,
            device=next(self.model.parameters(), torch.empty(0)).device,
            priors=self.priors,
        )

    def _preflight(
        self, target: FeatureTarget, requests: Sequence[Request]
    ) -> Preflight:
        """Whether the features can be recomputed from the images themselves."""
        first = requests[0]
        if not self.truth_known:
            return Preflight(
                replay_error=None,
                loss_at_truth=None,
                double_backward="not needed: one derivative is enough",
            )
        again = feature_error(target, first, first.batch.images)
        return Preflight(
            replay_error=None if self.sent is not None else again,
            loss_at_truth=again,
            double_backward="not needed: one derivative of the features is enough",
        )

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


@dataclass(frozen=True, eq=False)
class SentFeatures:
    """Features that were recorded elsewhere.

    Attributes:
        values: (batch, …).
        image_shape: (channels, height, width); None: as the model states.
    """

    values: Tensor
    image_shape: tuple[int, int, int] | None = None


def _unscored(record: AttackRecord) -> AttackRecord:
    """Without the images nothing is scored: a value against others would be made up."""
    bare = record.evidence.model_copy(update={"scores": {}})
    nothing = [None] * len(record.differences)
    return record.model_copy(update={"evidence": bare, "differences": nothing})


def _checked_values(
    sent: SentFeatures, opened: OpenedCut, name: str, images: int
) -> Tensor:
    """The features, one row an image, as floats."""
    values, made = sent.values, opened.sent
    if values.shape[1:] != made.shape[1:] or not values.is_floating_point():
        raise ConfigError(
            f"attack_features(h), split {name}",
            expected=f"floats of shape (batch, {', '.join(map(str, made.shape[1:]))})",
            got=f"{values.dtype}, {tuple(values.shape)}",
            hint="Name the cut at which they were recorded, and pass one row an image.",
        )
    if len(values) != images:
        raise ConfigError(
            "attack_features(h, truth=…)",
            expected=f"{len(values)} image(s), one a row of h",
            got=f"{images}",
            hint="Pass the images in the order of their features.",
        )
    return values.detach().float()


def open_feature_session(
    model: nn.Module,
    given: Any,
    *,
    config: AuditConfig,
    normalisation: Normalisation,
    notes: Sequence[Finding],
    priors: Mapping[str, object],
    started: float,
    sent: SentFeatures | None = None,
) -> FeatureSession:
    """Read the sample, cut the model, look at what it sends.

    Args:
        model: The whole model.
        given: As for ``Auditor.audit``; None: a shipped photograph.
        config: Of the audit; its split says where.
        normalisation: As the user gave it.
        notes: Findings made before.
        priors: What the attacker has beside the model; ``public_images`` among them.
        started: By the monotonic clock.
        sent: What was recorded elsewhere; None: it is made here.
    """
    if config.client.mode == "train":
        model.eval()  # as deployed; "as_is" leaves the modes as they were given
    truth_known = sent is None or given is not None
    if given is None:
        count = 1 if sent is None else len(sent.values)
        shape = (sent and sent.image_shape) or stated_input_shape(model)
        shipped = shipped_images(min(count, 64), shape)
        shipped = shipped[torch.arange(count) % len(shipped)]
        given = to_range(shipped, config.value_range)
    sample, normalisation = read_sample(
        given,
        normalisation,
        channels=expected_channels(model),
        value_range=config.value_range,
    )
    check_bands(config.shown_bands, sample.images.shape[1])
    keyword = sample.keyword or input_keyword(model)
    if config.split is None:
        raise ConfigError(
            "Auditor.split",
            expected="where the model is cut",
            got="None",
            hint='Name a module, such as split="blocks.6".',
        )
    opened = opened_cut(model, config.split, sample.images, normalisation, keyword)
    values = None
    if sent is not None:
        values = _checked_values(sent, opened, config.split.name, len(sample.images))
    handed = dict(priors)
    public = handed.pop("public_images", None)
    images = None
    if public is not None:
        shown, _ = read_sample(
            public,
            normalisation,
            channels=sample.images.shape[1],
            value_range=config.value_range,
        )
        images = shown.images
    return FeatureSession(
        model,
        opened.exposure,
        sample,
        config,
        opened,
        opened.inventory(notes),
        started,
        images,
        handed,
        values,
        truth_known,
    )
