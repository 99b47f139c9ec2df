"""The result of an audit: one typed record, and the pictures beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from privaudit._prior_card import PriorCard as PriorCard
from privaudit._records import RESULT_FILE as RESULT_FILE
from privaudit._records import SCHEMA_VERSION as SCHEMA_VERSION
from privaudit._records import AttackRecord as AttackRecord
from privaudit._records import AuditRecord as AuditRecord
from privaudit._records import CurvePoint as CurvePoint
from privaudit._records import FormNote as FormNote
from privaudit._records import Iterate as Iterate
from privaudit._records import LadderStep as LadderStep
from privaudit._records import LeakRecord as LeakRecord
from privaudit._records import MaskScore as MaskScore
from privaudit._records import PositiveControl as PositiveControl
from privaudit._records import Preflight as Preflight
from privaudit._records import PriorRecord as PriorRecord
from privaudit._records import Provenance as Provenance
from privaudit._records import Redaction as Redaction
from privaudit._records import SampleOutcome as SampleOutcome
from privaudit._records import SampleRecord as SampleRecord
from privaudit._records import SkippedInput as SkippedInput
from privaudit._records import SplitRecord as SplitRecord
from privaudit._records import SuccessRecord as SuccessRecord
from privaudit._records import ThreatModel as ThreatModel
from privaudit._records import gather_evidence as gather_evidence
from privaudit.errors import ReportError
from privaudit.verdict import AttackState, Policy, Score, Verdict, Worst, judge

if TYPE_CHECKING:
    from torch import Tensor


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
    def tokens(self) -> list[list[int | None] | None]:
        """Per sample the token ids in their order, as far as they were found."""
        return self.record.tokens

    @property
    def leaked_ids(self) -> list[LeakRecord]:
        """Token ids that the gradient shows without an order."""
        return self.record.leaked_ids

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

        ``.json``: the record alone · ``.html``: one self-contained page · ``.pdf``:
        the same on paper, the record attached (extra ``pdf``) · a folder (no suffix):
        result.json, images/ and report.html, no PDF. Files get mode 0600.

        Args:
            path: Where to.
            redact: ``originals`` blurs the user's images, ``all`` the
                reconstructions as well; the choice is recorded.

        Raises:
            ReportError: Unknown suffix, or the place cannot be written.
            MissingDependencyError: No PDF engine here; the HTML was written instead.
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
