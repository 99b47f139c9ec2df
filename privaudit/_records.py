"""The records of an audit, as they reach disk: the contract with every reader.

Reports and gates see nothing else. Frozen pydantic models; no tensor, no torch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from privaudit._prior_card import PriorCard
from privaudit.config import AuditConfig, FeatureKind
from privaudit.inventory.records import Inventory
from privaudit.verdict import (
    AttackEvidence,
    AttackState,
    ControlEvidence,
    Evidence,
    Kind,
    Partial,
    UnrelatedPairs,
    Verdict,
)

SCHEMA_VERSION = "1"
RESULT_FILE = "result.json"
MISFIT_DB = 3.0
"""A prior that denoises images so much worse than its own kind does not know them."""

Redaction = Literal["none", "originals", "all"]


class Record(BaseModel):
    """Base of what reaches disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ThreatModel(Record):
    """Who attacks, what they see, what they were given."""

    exposure: str
    attacker: str
    sees: list[str]
    knows: list[str]
    does_not_know: list[str]


class Preflight(Record):
    """Checks of the audit itself, made before any attack."""

    replay_error: float | None
    """Largest difference of the outputs when the recorded masks are replayed."""
    loss_at_truth: float | None
    """Relative error of the recomputed gradient at the true input and masks."""
    noise_floor: float | None = None
    """‖g - g₃₂‖ / ‖g‖ of a step in reduced precision and the same in float32, at the
    truth where it is known; None where the step is in full precision."""
    double_backward: str
    """``ok``, or what stands in the way of a second derivative."""
    notes: list[str] = Field(default_factory=list)


class FormNote(Record):
    """One form of an attack on one client: applied or not, and why."""

    form: str
    applied: bool
    reason: str


class SampleOutcome(Record):
    """How an attack ended for one image."""

    state: AttackState
    form: str = ""
    """Which form recovered it."""
    residual: float | None = None
    """Relative error of the recomputed observation."""
    note: str = ""
    forms: list[FormNote] = Field(default_factory=list)
    label: int | None = None
    """The class that the attacker read off the gradient."""


class LeakRecord(Record):
    """Token ids that the gradient of one client shows, without their order."""

    client: int
    table: str
    """Name of the embedding's weight."""
    positions: list[int]
    """Which positions of the input take their rows from it."""
    ids: list[int]


class CurvePoint(Record):
    """One look at the loss during a search."""

    iteration: int
    loss: float


class Iterate(Record):
    """One picture on the way of a search."""

    iteration: int
    image: str | None


class MaskScore(Record):
    """How well one dropout call's mask was found."""

    name: str
    """The call, such as ``encoder.dropout#0``."""
    kind: str
    p: float
    mmd: float
    """Mean squared difference to the client's mask."""
    trd: float
    """Difference of the dropout rates."""
    accuracy: float
    """Share of entries that are right after rounding at one half."""


class PriorRecord(Record):
    """The prior that an attack drew from, and what it draws without any features."""

    card: PriorCard
    unguided: str | None = None
    """Name of such a drawing in the image store; None: it was not made."""
    unguided_ssim: float | None = None
    """Its SSIM with the first image: what a reconstruction has to beat."""
    fit_db: float | None = None
    """PSNR of the private images denoised by it at step 300; None: not measured."""

    @property
    def own_db(self) -> float | None:
        """The same of images of its own kind; None: its card does not say."""
        return self.card.denoising_db.get("300")

    @property
    def misfit_db(self) -> float:
        """How much worse it knows the private images than its own; 0: no worse."""
        if self.fit_db is None or self.own_db is None:
            return 0.0
        return max(self.own_db - self.fit_db, 0.0)


class AttackRecord(Record):
    """Everything about one attack: settings, cost, outcome, scores."""

    evidence: AttackEvidence
    title: str
    summary: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    settings_given: dict[str, Any] = Field(default_factory=dict)
    seconds: float = 0.0
    iterations: int = 0
    restarts: int = 0
    path: str = ""
    """For one client or several at once; whether replayed or compiled."""
    device: str = "cpu"
    seed: int = 0
    loss_start: float | None = None
    loss_final: float | None = None
    loss_truth: float | None = None
    defense: str | None = None
    """What it was up against, stated or found; None: nothing."""
    countermeasures: list[str] = Field(default_factory=list)
    """What was done about it, in order; empty: the naive attack."""
    countermeasure_notes: list[str] = Field(default_factory=list)
    """What that came to, with its numbers."""
    outcomes: list[SampleOutcome] = Field(default_factory=list)
    """One per image, in sample order."""
    optimised: int | None = None
    """Values that the search moved, of one client; None for closed forms."""
    curve: list[CurvePoint] = Field(default_factory=list)
    """Total loss of the search on the first image's client."""
    iterates: list[Iterate] = Field(default_factory=list)
    """What the first image looked like on the way."""
    success: list[SuccessRecord] = Field(default_factory=list)
    """Success rate over the threshold, for metrics of a similarity in [0, 1]."""
    prior: PriorRecord | None = None
    """Where it drew from a generative prior: which one."""
    masks: list[MaskScore] = Field(default_factory=list)
    """How well each dropout mask was found, over all clients."""
    mask_mmd: float | None = None
    """Mean over layers of the mean squared mask difference (Scheliga 2023, eq. 4)."""
    mask_trd: float | None = None
    """Mean over layers of the difference in dropout rate (eq. 6)."""
    label_accuracy: float | None = None
    """Share of labels that were read off right, as a multiset per client."""
    tokens: list[list[int | None] | None] = Field(default_factory=list)
    """Per sample the ids in their order, None where one is unknown; None instead of
    the list where no order was found. Empty for images."""
    leaked_ids: list[LeakRecord] = Field(default_factory=list)
    """Ids without an order, per client and embedding."""
    images: list[str | None] = Field(default_factory=list)
    """Names of the reconstructions in the image store, in sample order."""
    differences: list[str | None] = Field(default_factory=list)


class SuccessRecord(Record):
    """Share of images that an attack got, for every idea of "got"."""

    metric: str
    lower_is_leakier: bool
    thresholds: list[float]
    rates: list[float]
    """Share of ``images`` strictly beyond each threshold; without a reconstruction an
    image counts as missed."""
    images: int


class SampleRecord(Record):
    """One image of the audit."""

    index: int
    name: str
    client: int
    """Which client's step it was part of."""
    label: int | None
    label_source: Literal["given", "model's own argmax", "none"]
    image: str | None
    """Name of the original in the image store; None when redacted by omission."""
    tokens: list[int] | None = None
    """The ids that the client held; None for images, and when redacted."""
    padding: list[int] = Field(default_factory=list)
    """Positions that hold padding, which never counts."""


class PositiveControl(Record):
    """The same ladder on a case that it must solve."""

    passed: bool
    model: str
    """Which model was attacked: the user's own without dropout, or a built-in one."""
    ssim: float | None
    limit: float
    seconds: float
    detail: str


class SplitRecord(Record):
    """Where the model was cut, and what leaves the device there."""

    name: str
    """As the user wrote it."""
    place: str
    """Module, call and element that the name stands for."""
    shape: list[int]
    """Of the features of one image."""
    bytes_per_image: int
    """As sent, in the type that the model computes them in."""
    layout: FeatureKind
    layout_source: str
    """What the layout was read from."""
    layout_certain: bool
    prefix_tokens: int
    grid: tuple[int, int] | None
    client_flops: int | None = None
    """Floating-point operations on the device, one image; None: not counted."""
    complete: bool | None = None
    """True: the rest of the model needs nothing but these features; None: unknown."""


class LadderStep(Record):
    """What a score looks like, on the user's own image."""

    target: float
    ssim: float
    """Measured on the picture shown."""
    image: str | None


class Provenance(Record):
    """Where the numbers come from."""

    privaudit: str
    packages: dict[str, str]
    python: str
    platform: str
    processor: str
    cores: int
    threads: int
    memory_gib: float | None
    device: str
    git_revision: str | None
    git_dirty: bool | None
    model_digest: str
    data_digest: str
    policy_digest: str
    command: list[str]
    started: str
    """UTC, ISO 8601."""
    seconds: float


class SkippedInput(Record):
    """An input that could not be audited."""

    name: str
    reason: str


class AuditRecord(Record):
    """The JSON document. ``verdict`` is the word as of the audit's own policy."""

    schema_version: Literal["1"] = "1"
    verdict: Verdict
    config: AuditConfig
    threat_model: ThreatModel
    inventory: Inventory
    preflight: Preflight
    kind: Kind = "images"
    """What the samples are."""
    exposure: Literal["gradient", "features"] = "gradient"
    """What the attacker saw."""
    split: SplitRecord | None = None
    """Where the model was cut; None for gradients."""
    metrics_off: dict[str, str] = Field(default_factory=dict)
    """Metrics that do not apply to such samples, with the reason: off, not 0."""
    samples: list[SampleRecord]
    truth_known: bool = True
    """False for a recorded gradient whose images nobody gave: nothing is scored."""
    skipped_inputs: list[SkippedInput] = Field(default_factory=list)
    partial: Partial | None = None
    """How far it came, where it was interrupted by hand."""
    attacks: list[AttackRecord]
    positive_control: PositiveControl | None
    unrelated: list[UnrelatedPairs]
    unrelated_image: str | None = None
    """An unrelated picture, shown beside the reconstructions."""
    ladder: list[LadderStep] = Field(default_factory=list)
    ladder_sample: int | None = None
    redaction: Redaction = "none"
    provenance: Provenance

    def evidence(self) -> Evidence:
        """What the judge gets to see of this record."""
        return gather_evidence(
            len(self.samples),
            self.attacks,
            self.positive_control,
            self.unrelated,
            truth_known=self.truth_known,
            preflight=self.preflight,
            skipped=len(self.skipped_inputs),
        ).model_copy(
            update={
                "kind": self.kind,
                "partial": self.partial,
                "exposure": self.exposure,
            }
        )


def gather_evidence(
    samples: int,
    attacks: list[AttackRecord],
    control: PositiveControl | None,
    unrelated: list[UnrelatedPairs],
    *,
    truth_known: bool = True,
    preflight: Preflight | None = None,
    skipped: int = 0,
) -> Evidence:
    """What the judge gets to see: scores, states and controls."""
    return Evidence(
        samples=samples,
        truth_known=truth_known,
        truth_error=preflight and preflight.loss_at_truth,
        noise_floor=preflight and preflight.noise_floor,
        skipped_inputs=skipped,
        attacks=[a.evidence for a in attacks],
        misfits={
            a.evidence.label: round(a.prior.misfit_db, 1)
            for a in attacks
            if a.prior is not None and a.prior.misfit_db > MISFIT_DB
        },
        positive_control=control
        and ControlEvidence(passed=control.passed, detail=control.detail),
        unrelated=unrelated,
    )
