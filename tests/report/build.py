"""Hand-made records with small pictures, for the tests of the report."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from privaudit.config import AuditConfig
from privaudit.inventory.records import Finding, Inventory, StochasticCall
from privaudit.result import (
    AttackRecord,
    AuditRecord,
    AuditResult,
    FormNote,
    ImageStore,
    LadderStep,
    PositiveControl,
    Preflight,
    Provenance,
    SampleOutcome,
    SampleRecord,
    SkippedInput,
    ThreatModel,
)
from privaudit.verdict import (
    AttackEvidence,
    AttackState,
    ControlEvidence,
    Evidence,
    Score,
    UnrelatedPairs,
    judge,
)

NASTY = '検 <script>alert("x")</script> & é.png'


def png(seed: int, size: tuple[int, int] = (32, 32)) -> bytes:
    """A small picture of its own: stripes that no other seed has."""
    width, height = size
    pixels = bytes(
        (seed * 37 + x * (3 + seed % 5) + y * 5 + c * 70) % 256
        for y in range(height)
        for x in range(width)
        for c in range(3)
    )
    return as_png(Image.frombytes("RGB", size, pixels))


def as_png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()


@dataclass(frozen=True)
class Case:
    """What a record is made of; ``result`` judges it and adds the pictures."""

    ssim: Sequence[float | None] = (0.91, 0.34, 0.42)
    state: AttackState = "exact"
    control: bool | None = True
    names: Sequence[str] = ()
    attacks: bool = True
    census: bool = True
    size: tuple[int, int] = (32, 32)

    def result(self, **changes: Any) -> AuditResult:
        record = self._record().model_copy(update=changes)
        return AuditResult(record, ImageStore(self.images()))

    def images(self) -> dict[str, bytes]:
        count = len(self.ssim)
        files = {"images/unrelated.png": png(999, self.size)}
        for i in range(count):
            files[f"images/{i}-original.png"] = png(3 * i, self.size)
            files[f"images/{i}-reconstruction.png"] = png(3 * i + 1, self.size)
            files[f"images/{i}-difference.png"] = png(3 * i + 2, self.size)
        for k in range(4):
            files[f"images/ladder-{k}.png"] = png(500 + k, self.size)
        return files

    def _record(self) -> AuditRecord:
        attacks = [self._solver(), superseded()] if self.attacks else [not_applicable()]
        config = AuditConfig()
        control = None if self.control is None else positive(self.control)
        unrelated = [UnrelatedPairs(metric="ssim", pairs=132, p95=0.21)]
        evidence = Evidence(
            samples=len(self.ssim),
            attacks=[a.evidence for a in attacks],
            positive_control=control and ControlEvidence(passed=control.passed),
            unrelated=unrelated,
        )
        return AuditRecord(
            verdict=judge(evidence, config.policy),
            config=config,
            threat_model=threat_model(),
            inventory=inventory(self.census),
            preflight=preflight(),
            samples=list(self._samples()),
            skipped_inputs=[SkippedInput(name=NASTY, reason="not an image")],
            attacks=attacks,
            positive_control=control,
            unrelated=unrelated,
            unrelated_image="images/unrelated.png",
            ladder=[
                LadderStep(target=t, ssim=t + 0.004, image=f"images/ladder-{k}.png")
                for k, t in enumerate((0.3, 0.5, 0.7, 0.9))
            ],
            ladder_sample=0,
            provenance=provenance(),
        )

    def _samples(self) -> Iterable[SampleRecord]:
        for i in range(len(self.ssim)):
            yield SampleRecord(
                index=i,
                name=self.names[i] if i < len(self.names) else f"photo-{i}.png",
                client=0,
                label=i,
                label_source="given" if i % 2 == 0 else "model's own argmax",
                image=f"images/{i}-original.png",
            )

    def _solver(self) -> AttackRecord:
        count = range(len(self.ssim))
        scores = {
            "ssim": [
                Score(value=v, note="" if v is not None else "not finite")
                for v in self.ssim
            ],
            "psnr_db": [
                Score(value=None, note="identical") if i == 0 else Score(value=18.4)
                for i in count
            ],
        }
        return AttackRecord(
            evidence=AttackEvidence(
                label="closed_form", state=self.state, scores=scores
            ),
            title="Closed form",
            summary="Solves the first layer for its input",
            settings={"tolerance": 1e-4, "forms": ["bias", "patch embedding"]},
            settings_given={"tolerance": 1e-4},
            seconds=1.84,
            loss_start=3.1,
            loss_final=2e-9,
            loss_truth=0.0,
            outcomes=[self._outcome(i) for i in count],
            images=[f"images/{i}-reconstruction.png" for i in count],
            differences=[f"images/{i}-difference.png" for i in count],
        )

    def _outcome(self, i: int) -> SampleOutcome:
        return SampleOutcome(
            state=self.state,
            form="patch embedding" if i == 0 else "bias",
            residual=2e-6 * (i + 1),
            label=i,
            forms=[
                FormNote(form="bias", applied=i > 0, reason="the layer has no bias"),
                FormNote(form="patch embedding", applied=i == 0, reason="not needed"),
                FormNote(form="tokens", applied=False, reason="no token layout"),
            ],
        )


LEAKS = Case()
CLEAN = Case(ssim=(0.12, 0.34, 0.2), state="converged")
INCONCLUSIVE = Case(ssim=(0.12, 0.34, 0.2), state="stopped", control=False)
NOT_RUN = Case(attacks=False, control=None, census=False)
MANY = Case(ssim=[0.2 + 0.007 * i for i in range(100)])
ODD_NAMES = replace(LEAKS, names=[NASTY, "日本.png", '"><img src=x>'])


def superseded() -> AttackRecord:
    return AttackRecord(
        evidence=AttackEvidence(
            label="dropout_inversion",
            state="skipped",
            skip="superseded",
            reason="an exact attack has solved every image",
        ),
        title="Dropout inversion",
    )


def not_applicable() -> AttackRecord:
    return AttackRecord(
        evidence=AttackEvidence(
            label="closed_form",
            state="skipped",
            skip="not applicable",
            reason="no layer of a shape that it solves",
        ),
        title="Closed form",
    )


def positive(passed: bool) -> PositiveControl:
    return PositiveControl(
        passed=passed,
        model="your model without dropout",
        ssim=0.98 if passed else 0.31,
        limit=0.9,
        seconds=4.2,
        detail="every image recovered" if passed else "the loss did not fall",
    )


def threat_model() -> ThreatModel:
    return ThreatModel(
        exposure="the gradient of one training step",
        attacker="an honest-but-curious server",
        sees=["the gradient of every shared parameter", "the size of the batch"],
        knows=["the model and its weights", "the loss", "the labels"],
        does_not_know=["the images", "the dropout masks"],
    )


def inventory(census: bool) -> Inventory:
    calls = [
        StochasticCall(path="encoder.dropout", call=0, kind="dropout", p=0.1),
        StochasticCall(
            path="blocks.0.attn",
            call=0,
            kind="attention-prob dropout",
            p=0.1,
            shape=[3, 4, 17, 17],
            hidden=True,
        ),
    ]
    return Inventory(
        model="torchvision.models.vision_transformer.VisionTransformer",
        input_shape=[3, 32, 32],
        parameters=5_526_346,
        trainable=5_526_346,
        shared=["conv_proj.weight", "conv_proj.bias"],
        stochastic=calls if census else [],
        census=census,
        findings=[
            Finding(
                code="first-layer-bias",
                severity="critical",
                where="conv_proj",
                title="the patch embedding has a bias",
                text="its gradient gives the input away by a division",
                remedy="train without this bias or do not share it",
            ),
            Finding(
                code="dropout",
                severity="info",
                where="encoder.dropout",
                title="dropout after the position embedding",
                text="the mask is unknown to the attacker and can be solved for",
            ),
        ],
        changes=[
            "attention runs in its plain form, so that it has a second derivative"
        ],
    )


def preflight() -> Preflight:
    return Preflight(
        replay_error=0.0, loss_at_truth=3.1e-7, double_backward="ok", notes=[]
    )


def provenance() -> Provenance:
    return Provenance(
        privaudit="0.1.0",
        packages={"torch": "2.14.1", "torchvision": "0.29.0"},
        python="3.12.3",
        platform="Linux",
        processor="x86_64",
        cores=8,
        threads=4,
        memory_gib=31.2,
        device="cpu",
        git_revision="0f3c2a9",
        git_dirty=True,
        model_digest="sha256:" + "ab" * 32,
        data_digest="sha256:" + "cd" * 32,
        policy_digest="sha256:" + "ef" * 32,
        command=["privaudit", "audit", "model.py:build", "--images", "a b.png"],
        started="2026-11-30T08:00:00Z",
        seconds=131.0,
    )
