"""The parts of one row of a comparison: labels, what an audit found, what it costs."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from privaudit._session import Session
from privaudit.defenses import ClientStepContext, Defense, Undefended
from privaudit.errors import ConfigError
from privaudit.session.features import FeatureSession
from privaudit.session.subject import Subject
from privaudit.study.compare_result import NONE, Attacked, DefenseRow
from privaudit.study.sweep import leakiest, shown_images
from privaudit.types import Batch

if TYPE_CHECKING:
    from privaudit.result import AuditResult
    from privaudit.study.store import Arrays

_TIMED = 15
"""Repetitions of which the median is the cost."""
Chain = Sequence[Defense]
AnySession = Session | FeatureSession


@dataclass(frozen=True)
class Place:
    """What is attacked in every row.

    Attributes:
        name: The cut, or what a client sends.
        images: How many.
        digest: Of the images.
    """

    name: str
    images: int
    digest: str


def chain_of(given: Defense | Sequence[Defense]) -> list[Defense]:
    """The defenses of one row that do something, in their order.

    Raises:
        ConfigError: Something else than defenses.
    """
    listed = [given] if isinstance(given, Defense) else list(given)
    for one in listed:
        if not isinstance(one, Defense):
            raise ConfigError(
                "compare_defenses(defenses)",
                expected="defenses, or lists of them that act one after the other",
                got=type(one).__name__,
                hint="privaudit.defenses.DEFENSES lists them.",
            )
    return [d for d in listed if not isinstance(d, Undefended)]


def label_of(chain: Chain) -> str:
    """What a row is called: ``disco(ratio=0.5), token_shuffle``."""
    return ", ".join(_label(d) for d in chain) or NONE


def _label(defense: Defense) -> str:
    given = defense.settings_given()
    listed = ", ".join(f"{n}={v}" for n, v in given.items())
    return f"{defense.name}({listed})" if listed else defense.name


def refuse_twins(labels: Sequence[str]) -> None:
    """Refuse to measure one thing twice.

    Raises:
        ConfigError: Nothing is given, or one row twice.
    """
    twice = sorted({n for n in labels if labels.count(n) > 1})
    if labels and not twice:
        return
    raise ConfigError(
        "compare_defenses(defenses)",
        expected="at least one defense, and each only once",
        got=", ".join(twice) or "none",
        hint="Give variants other settings; Undefended() is the row without any.",
    )


def blank(chain: Chain) -> DefenseRow:
    """A row of which nothing has been measured yet."""
    listed: Chain = chain or [Undefended()]
    return DefenseRow(
        label=label_of(chain),
        titles=[d.title for d in listed],
        sources=[d.source for d in listed if d.source],
        does_not_protect=[d.does_not_protect for d in listed],
        settings=[d.settings() for d in listed],
        known_to_attacks=bool(chain) and all(d.known_to_attacks for d in chain),
    )


def opened(subject: Subject, sample: Any) -> AbstractContextManager[AnySession]:
    """The session that the settings ask for."""
    if subject.config.split is not None:
        return subject.features(sample)
    return subject.images(sample)


def attacked(result: AuditResult) -> Attacked:
    """An audit in a few numbers."""
    record = result.record
    worst = record.verdict.worst.get("ssim")
    best = list(leakiest(record))
    ran = [a for a in record.attacks if not a.evidence.diagnostic]
    rates = [
        s.value
        for a in ran
        for s in a.evidence.scores.get("re_identification", [])
        if s.value is not None
    ]
    means = {a.evidence.label: _mean_ssim(a.evidence.scores) for a in ran}
    notes = list(dict.fromkeys(n for a in ran for n in a.countermeasure_notes))
    control = record.positive_control
    return Attacked(
        word=record.verdict.word,
        line=record.verdict.line,
        attack="" if worst is None else worst.attack or "",
        countermeasures=list(dict.fromkeys(c for a in ran for c in a.countermeasures)),
        ssim_worst=None if worst is None else worst.value,
        ssim_mean=math.fsum(best) / len(best) if best else None,
        re_identification=max(rates, default=None),
        leaks={w.metric: w.value for w in record.verdict.leaks},
        by_attack={n: v for n, v in means.items() if v is not None},
        control_passed=None if control is None else control.passed,
        notes=notes,
        causes=[c.text for c in record.verdict.causes],
        seconds=record.provenance.seconds,
    )


def _mean_ssim(scores: Any) -> float | None:
    known = [s.value for s in scores.get("ssim", []) if s.value is not None]
    return math.fsum(known) / len(known) if known else None


def pictures_of(result: AuditResult) -> Arrays:
    """First images and the reconstructions of the strongest attack."""
    worst = result.record.verdict.worst.get("ssim")
    return shown_images(result, "" if worst is None else worst.attack or "")


def cost_of(session: AnySession, chain: Chain) -> dict[str, Any]:
    """What the defenses add to one request, or to one client's step.

    Milliseconds are the median of some repetitions, with and without in turn.
    """
    if isinstance(session, FeatureSession):
        return _feature_cost(session, chain)
    return _gradient_cost(session, chain)


def _feature_cost(session: FeatureSession, chain: Chain) -> dict[str, Any]:
    device = next(session.model.parameters(), torch.empty(0)).device
    batch = Batch(session.sample.images[:1].to(device), None)
    exposure, model = session.exposure, session.model
    plain = exposure.observe(model, batch).features
    sent = exposure.defended(plain, chain, 0)
    before, added = _timed(
        lambda: exposure.observe(model, batch),
        lambda: exposure.defended(plain, chain, 0),
    )
    dense = sent.numel() * sent.element_size()
    return {
        "cost_ms": added if chain else 0.0,
        "cost_share": added / before if chain else 0.0,
        "bytes_sent": min([dense, *(d.bytes_of([sent]) for d in chain)]),
        "bytes_undefended": plain.numel() * plain.element_size(),
    }


def _gradient_cost(session: Session, chain: Chain) -> dict[str, Any]:
    client, exposure, model = session.first, session.exposure, session.model
    plain = list(client.step.clean.gradients.values())

    context = ClientStepContext(exposure, model, client.batch, client.step.tape)

    def defend() -> Mapping[str, Tensor]:
        made, draws = client.step.clean.gradients, torch.Generator().manual_seed(0)
        for defense in chain:
            made = defense.apply_gradient(made, context, draws)
        return made

    sent = list(defend().values())
    before, added = _timed(
        lambda: exposure.observe(model, client.batch, seed=0), defend
    )
    dense = sum(t.numel() * t.element_size() for t in plain)
    return {
        "cost_ms": added if chain else 0.0,
        "cost_share": added / before if chain else 0.0,
        "bytes_sent": min([dense, *(d.bytes_of(sent) for d in chain)]),
        "bytes_undefended": dense,
    }


def _timed(plain: Callable[[], Any], extra: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds of both, measured in turn; the median of each."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(_TIMED):
        for times, run in zip(spent, (plain, extra), strict=True):
            started = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(spent[0]), statistics.median(spent[1])
