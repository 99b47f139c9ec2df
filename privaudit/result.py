"""The result of an audit: one typed record, and the pictures beside it.

The record is the contract with every reader: reports and gates see nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privaudit.config import AuditConfig
from privaudit.errors import ReportError
from privaudit.inventory.records import Inventory
from privaudit.verdict import (
    AttackEvidence,
    AttackState,
    ControlEvidence,
    Evidence,
    Policy,
    Score,
    UnrelatedPairs,
    Verdict,
    Worst,
    judge,
)

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = "1"
RESULT_FILE = "result.json"

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
    device: str = "cpu"
    seed: int = 0
    loss_start: float | None = None
    loss_final: float | None = None
    loss_truth: float | None = None
    defense: str | None = None
    countermeasures: list[str] = Field(default_factory=list)
    outcomes: list[SampleOutcome] = Field(default_factory=list)
    """One per image, in sample order."""
    images: list[str | None] = Field(default_factory=list)
    """Names of the reconstructions in the image store, in sample order."""
    differences: list[str | None] = Field(default_factory=list)


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


class PositiveControl(Record):
    """The same ladder on a case that it must solve."""

    passed: bool
    model: str
    """Which model was attacked: the user's own without dropout, or a built-in one."""
    ssim: float | None
    limit: float
    seconds: float
    detail: str


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
    samples: list[SampleRecord]
    skipped_inputs: list[SkippedInput] = Field(default_factory=list)
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
            len(self.samples), self.attacks, self.positive_control, self.unrelated
        )


def gather_evidence(
    samples: int,
    attacks: list[AttackRecord],
    control: PositiveControl | None,
    unrelated: list[UnrelatedPairs],
) -> Evidence:
    """What the judge gets to see: scores, states and controls."""
    return Evidence(
        samples=samples,
        attacks=[a.evidence for a in attacks],
        positive_control=control
        and ControlEvidence(passed=control.passed, detail=control.detail),
        unrelated=unrelated,
    )


class ImageStore:
    """PNG files by name, in memory or in a folder beside ``result.json``."""

    def __init__(
        self, files: Mapping[str, bytes] | None = None, folder: Path | None = None
    ) -> None:
        self._files = dict(files or {})
        self._folder = folder

    def get(self, name: str | None) -> bytes | None:
        """The PNG called ``name``; None when it is not there."""
        if name is None:
            return None
        if name in self._files:
            return self._files[name]
        if self._folder is None or Path(name).is_absolute() or ".." in Path(name).parts:
            return None
        try:
            return (self._folder / name).read_bytes()
        except OSError:
            return None


@dataclass(frozen=True)
class AttackResult:
    """One attack as users see it."""

    record: AttackRecord
    _reconstructions: Tensor | None = field(repr=False, default=None)

    @property
    def state(self) -> AttackState:
        """How the attack ended."""
        return self.record.evidence.state

    @property
    def scores(self) -> dict[str, list[Score]]:
        """Per metric one score per image."""
        return self.record.evidence.scores

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, the defaults included."""
        return self.record.settings

    @property
    def defense(self) -> str | None:
        """The defense in place, if any."""
        return self.record.defense

    @property
    def countermeasures(self) -> list[str]:
        """What the attacker did about the defense."""
        return self.record.countermeasures

    @property
    def reconstructions(self) -> Tensor:
        """Float32 in [0, 1], shape (images, C, H, W), in sample order.

        Raises:
            ReportError: The attack has none, or the result was read from disk,
                where only rounded pictures for show are kept.
        """
        if self._reconstructions is None:
            raise ReportError(
                f"result.attacks[{self.record.evidence.label!r}].reconstructions",
                expected="reconstructions in memory",
                got=f"state {self.state!r} and no tensor",
                hint="An attack that did not run has none; a result read from disk "
                "keeps pictures for show only. Audit again to get the numbers.",
            )
        return self._reconstructions


class AuditResult:
    """The record of an audit, its pictures, and its reconstructions in memory."""

    def __init__(
        self,
        record: AuditRecord,
        store: ImageStore,
        reconstructions: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.record = record
        self.images = store
        self._tensors = dict(reconstructions or {})

    def __repr__(self) -> str:
        return f"AuditResult({self.record.verdict.line!r})"

    @property
    def verdict(self) -> Verdict:
        """The verdict under the audit's own policy."""
        return self.record.verdict

    @property
    def worst(self) -> Mapping[str, Worst]:
        """Per metric the leakiest value, with its image and attack."""
        return MappingProxyType(self.record.verdict.worst)

    @property
    def attacks(self) -> Mapping[str, AttackResult]:
        """Attacks by label, in the order they ran."""
        return MappingProxyType(
            {
                a.evidence.label: AttackResult(a, self._tensors.get(a.evidence.label))
                for a in self.record.attacks
            }
        )

    def judge(self, policy: Policy) -> Verdict:
        """The verdict of the same evidence under other limits."""
        return judge(self.record.evidence(), policy)

    def passed(self, *, max_ssim: float | None = None) -> bool:
        """True only if the gate would exit 0.

        Args:
            max_ssim: Highest harmless SSIM; None keeps the audit's own policy.
        """
        policy = self.record.config.policy
        if max_ssim is not None:
            policy = policy.with_limit("ssim", max_ssim)
        return self.judge(policy).exit_code == 0

    def save(self, path: str | Path, *, redact: Redaction = "none") -> Path:
        """Write the result; the form goes by the suffix.

        ``.json``: the record alone · ``.html``: one self-contained page · a folder
        (no suffix): result.json, images/ and report.html. Files get mode 0600.

        Args:
            path: Where to.
            redact: ``originals`` blurs the user's images, ``all`` the
                reconstructions as well; the choice is recorded.

        Raises:
            ReportError: Unknown suffix, or the place cannot be written.
        """
        from privaudit.report import write

        return write(self, Path(path), redact=redact)

    @classmethod
    def load(cls, path: str | Path) -> AuditResult:
        """Read a result folder or its ``result.json``.

        Raises:
            ReportError: Missing, truncated, or of another schema version.
        """
        file = Path(path)
        if file.is_dir():
            file = file / RESULT_FILE
        return cls(_read_record(file), ImageStore(folder=file.parent))


def _read_record(file: Path) -> AuditRecord:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(
            str(file),
            expected="a readable result file",
            got=error.strerror or str(error),
            hint="Give the folder that `privaudit audit --out` wrote.",
        ) from error
    except ValueError as error:
        raise ReportError(
            str(file),
            expected="complete JSON",
            got=f"a damaged or truncated file ({error})",
            hint="Run the audit again; a damaged result is never gated.",
        ) from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ReportError(
            str(file),
            expected=f"schema version {SCHEMA_VERSION}",
            got=repr(version),
            hint="Read it with the version of privaudit that wrote it.",
        )
    try:
        return AuditRecord.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ReportError(
            f"{file}: {'.'.join(map(str, first['loc']))}",
            expected="a record as in `privaudit schema`",
            got=f"{error.error_count()} fault(s): {first['msg']}",
            hint="The file was changed or cut; run the audit again.",
        ) from error
