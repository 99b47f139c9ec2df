"""One audit per cut of a model: where does it leak, and what does each cut cost?"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from privaudit import __version__
from privaudit._provenance import code_digest, model_digest, tensor_digest
from privaudit.config import Split
from privaudit.errors import ConfigError, PrivauditError
from privaudit.inventory.records import SplitCandidate
from privaudit.report.files import make_folder
from privaudit.result import AuditRecord, AuditResult, SplitRecord
from privaudit.study.base import Study
from privaudit.study.keys import CellKey
from privaudit.study.store import Arrays, Store

if TYPE_CHECKING:
    import numpy as np

    from privaudit.attacks import FeatureAttack
    from privaudit.session.features import FeatureSession

KIND = "sweep-cut"
MOST_CUTS = 8
"""Of a sweep to which nobody named cuts."""
SHOWN = 4
"""Images of each cut that are kept as pictures."""
Open = Callable[[Split], "AbstractContextManager[FeatureSession]"]
Say = Callable[[str], None]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SweepRow(_Record):
    """What was found at one cut."""

    name: str
    split: SplitRecord | None = None
    """None where the cut could not be audited."""
    word: str = "not run"
    """Of the verdict."""
    line: str = ""
    """The final line of the audit."""
    attack: str = ""
    """Which gave the worst image."""
    ssim_worst: float | None = None
    ssim_mean: float | None = None
    """Over images, of each image's leakiest reconstruction."""
    re_identification: float | None = None
    """The highest rate of any attack."""
    seconds: float = 0.0
    error: str = ""
    """Why there is no verdict."""
    causes: list[str] = Field(default_factory=list)


class SweepResult(_Record):
    """The document of a sweep: cuts in the order in which they were asked for."""

    schema_version: Literal["1"] = "1"
    privaudit: str
    started: str
    """UTC, ISO 8601."""
    model: str
    images: int
    image_bytes: int
    """Of one image, 8 bits a value: what sending the image itself would take."""
    total_flops: int | None
    """Of the whole model for one image; None: not counted."""
    ssim_limit: float | None
    rows: list[SweepRow]
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """True when every cut got a verdict."""
        return not self.interrupted and all(r.split is not None for r in self.rows)

    @property
    def cheapest_unbroken(self) -> SweepRow | None:
        """Of the cuts that were cleared the one that costs the device least; of those
        without a leak where none was cleared."""
        clear = [r for r in self.rows if r.word == "no leak found"]
        unbroken = [r for r in self.rows if r.split and r.word != "leaks"]
        return min(clear or unbroken, key=_cost, default=None)

    @property
    def lowest(self) -> SweepRow | None:
        """The cut whose worst image is furthest from its original."""
        scored = [r for r in self.rows if r.ssim_worst is not None]
        return min(scored, key=lambda r: r.ssim_worst or 0.0, default=None)


@dataclass(frozen=True, eq=False)
class CutStudy(Study):
    """A finished sweep with its pictures.

    Attributes:
        result: The record.
        pictures: Per cut ``original`` and ``reconstruction``, (images, C, H, W).
        computed: Cuts that were audited just now; the others were there.
    """

    result: SweepResult
    pictures: dict[str, Arrays]
    computed: int

    def save(self, path: str | Path) -> Path:
        """Into a folder: write ``report.json``, ``report.md`` and ``report.html``.

        Raises:
            ReportError: The place cannot be written.
        """
        from privaudit.study import sweep_page

        place = Path(path)
        make_folder(place)
        sweep_page.write(self.result, self.pictures, place)
        return place


def spread(candidates: Sequence[SplitCandidate], most: int = MOST_CUTS) -> list[Split]:
    """Some of the possible cuts, evenly over the order in which the model runs.

    Only those through which everything goes, where there are any.
    """
    usable = [c for c in candidates if c.shape]
    whole = [c for c in usable if c.complete] or usable
    if len(whole) <= most:
        return [Split(c.name) for c in whole]
    steps = (len(whole) - 1) / (most - 1)
    return [Split(whole[round(i * steps)].name) for i in range(most)]


def swept(
    cuts: Sequence[str | Split | SplitCandidate],
    open_cut: Open,
    attacks: Sequence[FeatureAttack],
    out: str | Path | None,
) -> CutStudy:
    """Audit one cut after the other.

    Args:
        cuts: As asked for; of candidates, some are chosen.
        open_cut: Opens a session at a cut.
        attacks: In the order of the ladder.
        out: Folder that keeps finished cuts; None: nothing is kept.

    Raises:
        ConfigError: There is no cut.
    """
    free = [c for c in cuts if isinstance(c, SplitCandidate)]
    named = [c for c in cuts if not isinstance(c, SplitCandidate)]
    chosen = [c if isinstance(c, Split) else Split(c) for c in named] + spread(free)
    if not chosen:
        raise ConfigError(
            "Auditor.sweep(splits)",
            expected="at least one cut",
            got="none",
            hint="split_candidates(sample) lists what there is.",
        )
    made = Sweep(open_cut, attacks, None if out is None else Store(out))
    return CutStudy(made.run(chosen), made.pictures, made.computed)


@dataclass
class Sweep:
    """Runs the audits that are missing; each is kept once it is finished.

    Attributes:
        open_cut: Opens a session at a cut.
        attacks: In the order of the ladder.
        store: Where finished cuts are kept; None: nowhere.
        say: Told one sentence a cut.
    """

    open_cut: Open
    attacks: Sequence[FeatureAttack]
    store: Store | None = None
    say: Say = lambda _: None
    computed: int = 0
    """Cuts that this run audited."""
    pictures: dict[str, Arrays] = field(default_factory=dict)
    """Per cut ``original`` and ``reconstruction``, (images, C, H, W) in [0, 1]."""

    def run(self, splits: Sequence[Split]) -> SweepResult:
        """Audit each cut; one that cannot be audited does not stop the others.

        Ctrl-C ends the sweep with what is there.
        """
        rows: list[SweepRow] = []
        about: list[tuple[str, int, int, int | None, float | None]] = []
        interrupted = False
        for split in splits:
            if interrupted:
                rows.append(SweepRow(name=split.name, error="interrupted before it"))
                continue
            try:
                with self.open_cut(split) as session:
                    about.append(_facts(session))
                    rows.append(self._row(split, session))
            except PrivauditError as error:
                rows.append(SweepRow(name=split.name, error=str(error)))
            except KeyboardInterrupt:
                interrupted = True
                rows.append(SweepRow(name=split.name, error="interrupted"))
            interrupted = interrupted or rows[-1].error == _BY_HAND
            self.say(f"{split.name}: {rows[-1].line or rows[-1].error}")
        model, images, size, flops, limit = (
            about[0] if about else ("", 0, 0, None, None)
        )
        return SweepResult(
            privaudit=__version__,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            model=model,
            images=images,
            image_bytes=size,
            total_flops=flops,
            ssim_limit=limit,
            rows=rows,
            interrupted=interrupted,
        )

    def _row(self, split: Split, session: FeatureSession) -> SweepRow:
        key = _key(split, session, self.attacks)
        cell = None if self.store is None else self.store.get(key)
        if cell is not None:
            self.pictures[split.name] = cell.arrays()
            return SweepRow.model_validate(cell.values)
        result = session.audit(self.attacks)
        row, shown = _summed_up(split, result)
        self.pictures[split.name] = shown
        self.computed += 1
        if result.record.partial is not None:
            return row.model_copy(update={"error": _BY_HAND})
        if self.store is not None:
            self.store.put(key, row.model_dump(mode="json"), shown)
        return row


_BY_HAND = "interrupted by hand: the cut is audited again next time"


def _facts(
    session: FeatureSession,
) -> tuple[str, int, int, int | None, float | None]:
    images = session.sample.images
    limit = session.config.policy.limits.get("ssim")
    return (
        session.inventory.model,
        len(images),
        math.prod(images.shape[1:]),
        session.total_flops(),
        None if limit is None or limit.level == "off" else limit.limit,
    )


def _key(
    split: Split, session: FeatureSession, attacks: Sequence[FeatureAttack]
) -> CellKey:
    config = session.config.model_dump(mode="json")
    public = None if session.public is None else tensor_digest(session.public)
    return CellKey(
        kind=KIND,
        version=__version__,
        model=model_digest(session.model),
        data=tensor_digest(session.sample.images),
        settings={
            "split": split.model_dump(mode="json"),
            "config": config,
            "attacks": {a.name: a.settings() for a in attacks},
            "public_images": public,
            "priors": {n: _handed_over(p) for n, p in sorted(session.priors.items())},
            "code": code_digest(),
        },
    )


def _handed_over(prior: object) -> JsonValue:
    """A prior in a word, and its files as they are: another one is another cell."""
    if isinstance(prior, BaseModel):
        return [type(prior).__name__, prior.model_dump(mode="json")]
    if not isinstance(prior, str | Path):
        return type(prior).__name__
    place = Path(prior).expanduser()
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    facts = [(f.name, f.stat()) for f in files if f.is_file()]
    return [str(prior), [[n, s.st_size, s.st_mtime_ns] for n, s in facts]]


def _summed_up(split: Split, result: AuditResult) -> tuple[SweepRow, Arrays]:
    record = result.record
    worst = record.verdict.worst.get("ssim")
    per_image = list(leakiest(record))
    rates = [
        s.value
        for a in record.attacks
        if not a.evidence.diagnostic
        for s in a.evidence.scores.get("re_identification", [])
        if s.value is not None
    ]
    row = SweepRow(
        name=split.name,
        split=record.split,
        word=record.verdict.word,
        line=record.verdict.line,
        attack="" if worst is None else worst.attack or "",
        ssim_worst=None if worst is None else worst.value,
        ssim_mean=math.fsum(per_image) / len(per_image) if per_image else None,
        re_identification=max(rates, default=None),
        seconds=record.provenance.seconds,
        causes=[c.text for c in record.verdict.causes],
    )
    return row, shown_images(result, row.attack)


def leakiest(record: AuditRecord) -> Iterator[float]:
    """Per image the highest SSIM of any attack that counts."""
    tables = [
        a.evidence.scores.get("ssim", [])
        for a in record.attacks
        if not a.evidence.diagnostic
    ]
    for scores in zip(*(t for t in tables if t), strict=True):
        known = [s.value for s in scores if s.value is not None]
        if known:
            yield max(known)


def shown_images(result: AuditResult, attack: str) -> Arrays:
    """First images as ``original``, and what an attack made of them."""
    found: dict[str, np.ndarray] = {}
    if attack and attack in result.attacks:
        guess = result.attacks[attack].reconstructions[:SHOWN]
        found["reconstruction"] = guess.numpy()
        originals = [
            _png(result.images.get(s.image)) for s in result.record.samples[:SHOWN]
        ]
        if all(o is not None for o in originals):
            import numpy as np

            found["original"] = np.stack([o for o in originals if o is not None])
    return found


def _png(data: bytes | None) -> np.ndarray | None:
    """(C, H, W) in [0, 1]."""
    if data is None:
        return None
    import numpy as np
    from PIL import Image

    shown = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float32)
    return np.ascontiguousarray(shown.transpose(2, 0, 1)) / 255


def _cost(row: SweepRow) -> tuple[float, float]:
    split = row.split
    if split is None:
        return math.inf, math.inf
    return (
        math.inf if split.client_flops is None else float(split.client_flops),
        float(split.bytes_per_image),
    )
