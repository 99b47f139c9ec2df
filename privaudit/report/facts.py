"""What the sections ask a record: who decides, what is worst, under which limit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privaudit.report import phrases
from privaudit.result import AttackRecord, AuditRecord, SampleRecord

if TYPE_CHECKING:
    from privaudit.verdict import Score, Verdict, Worst


@dataclass(frozen=True)
class Leakiest:
    """The closest reconstruction of one image.

    Attributes:
        attack: Closest by the main metric; where only others leak, by those.
        value: The highest of the main metric, over all attacks.
        beyond: That value is beyond its limit.
        leaks: Some metric that the verdict rests on is beyond its limit.
    """

    position: int
    sample: SampleRecord
    attack: AttackRecord | None
    value: float | None
    beyond: bool
    leaks: bool


def headline_worst(verdict: Verdict) -> Worst | None:
    """The value of the final line: a leak if there is one, SSIM before others."""
    pool = {w.metric: verdict.worst[w.metric] for w in verdict.leaks} or verdict.worst
    return pool.get("ssim") or next(iter(pool.values()), None)


def noun(record: AuditRecord) -> str:
    """What one of the samples is called."""
    return "image" if record.kind == "images" else "sample"


SUBJECTS = {"gradient": "gradient inversion", "features": "split inference"}
"""What an audit is about, by exposure."""


def observation(record: AuditRecord) -> str:
    """What the attacker saw, in one word."""
    return "gradient" if record.exposure == "gradient" else "features"


def worded(record: AuditRecord, text: str) -> str:
    """A general text about images, as it reads for other samples."""
    if record.kind == "images":
        return text
    return text.replace("an image", "a sample").replace("image", "sample")


def labels_are(record: AuditRecord) -> str:
    """How the attacker came by the labels; those that are the text are not given."""
    stated = record.config.knowledge.labels
    kept = record.kind == "tokens" and "the labels" in record.threat_model.does_not_know
    return "unknown" if kept else stated


def deciding(record: AuditRecord) -> list[AttackRecord]:
    """The attacks that count: those that only used what an attacker has."""
    return [a for a in record.attacks if not a.evidence.diagnostic]


def main_metric(record: AuditRecord) -> str:
    """The metric that orders images: SSIM, or the one that the verdict rests on."""
    measured = {m for a in deciding(record) for m in a.evidence.scores}
    worst = headline_worst(record.verdict)
    if "ssim" in measured or worst is None:
        return "ssim"
    return worst.metric


def limit_in_force(record: AuditRecord, metric: str) -> float | None:
    """The limit of ``metric``, the distance from unrelated pairs included."""
    worst = record.verdict.worst.get(metric)
    if worst is not None:
        return worst.limit
    limit = record.config.policy.limits.get(metric)
    return None if limit is None or limit.level == "off" else limit.limit


def lower_is_leakier(record: AuditRecord, metric: str) -> bool:
    """True for distances, as the policy says."""
    limit = record.config.policy.limits.get(metric)
    return limit is not None and limit.lower_is_leakier


def score(
    record: AuditRecord, attack: AttackRecord, metric: str, position: int
) -> Score | None:
    """One value of one image; None for metrics of the whole set."""
    scores = attack.evidence.scores.get(metric, [])
    one_for_all = len(scores) == 1 < len(record.samples)
    if metric == "re_identification" or one_for_all or position >= len(scores):
        return None
    return scores[position]


def per_image_metrics(record: AuditRecord) -> list[str]:
    """Metrics that have one value per image, in the order they were measured."""
    names = {
        m: None
        for a in deciding(record)
        for m in a.evidence.scores
        if record.samples and score(record, a, m, 0) is not None
    }
    return list(names)


def leakiest(record: AuditRecord) -> list[Leakiest]:
    """Per image its closest reconstruction, the worst image first."""
    metric = main_metric(record)
    sign = -1.0 if lower_is_leakier(record, metric) else 1.0
    found = [_leakiest_of(record, i, metric, sign) for i in range(len(record.samples))]
    lowest = float("-inf")
    return sorted(
        found, key=lambda f: lowest if f.value is None else sign * f.value, reverse=True
    )


WORST, BEST, DRAWN = 20, 5, 20
"""How many images a PDF shows of each kind; the rest is in the other forms."""


def on_paper(record: AuditRecord, found: Sequence[Leakiest]) -> list[Leakiest]:
    """A bounded choice, the worst image first: worst, best, and some drawn at random.

    The draw goes by the seed of the audit, so that the same record shows the same.
    """
    if len(found) <= WORST + BEST + DRAWN:
        return list(found)
    middle = range(WORST, len(found) - BEST)
    drawn = random.Random(record.config.seed).sample(middle, DRAWN)  # noqa: S311 - no secret
    return [*found[:WORST], *(found[i] for i in sorted(drawn)), *found[-BEST:]]


def said_on_paper(found: int, what: str = "images") -> str:
    """How many of how many a PDF shows, by which choice, and where the rest is."""
    shown = WORST + BEST + DRAWN
    if found <= shown:
        return f"All {found:,} {what} shown."
    return (
        f"{shown} of {found:,} {what} shown: the {WORST} worst, the {BEST} best and "
        f"{DRAWN} drawn at random; {found - shown:,} omitted. Every value is in the "
        "attached result.json."
    )


def _leakiest_of(
    record: AuditRecord, position: int, metric: str, sign: float
) -> Leakiest:
    sample = record.samples[position]
    values = list(_values(record, position, metric))
    if not values:
        picture = _any_picture(record, position)
        return Leakiest(position, sample, picture, None, False, False)
    value, attack = max(values, key=lambda pair: sign * pair[0])
    limit = limit_in_force(record, metric)
    beyond = limit is not None and sign * value > sign * limit
    others = [] if beyond else _leaking_by_others(record, position, metric)
    shown = others[0] if others else attack
    return Leakiest(position, sample, shown, value, beyond, beyond or bool(others))


def _leaking_by_others(
    record: AuditRecord, position: int, metric: str
) -> list[AttackRecord]:
    """Attacks beyond the limit of a metric that can fail the gate, closest first."""
    limits = record.config.policy.limits
    found = []
    for other in per_image_metrics(record):
        limit = limit_in_force(record, other)
        known = limits.get(other)
        if other == metric or limit is None or known is None or known.level != "error":
            continue
        sign = -1.0 if known.lower_is_leakier else 1.0
        for value, attack in _values(record, position, other):
            if sign * value > sign * limit:
                found.append((sign * (value - limit), attack))
    return [attack for _, attack in sorted(found, key=lambda f: -f[0])]


def _values(
    record: AuditRecord, position: int, metric: str
) -> Iterator[tuple[float, AttackRecord]]:
    for attack in deciding(record):
        found = score(record, attack, metric, position)
        if found is not None and found.value is not None and found.value == found.value:
            yield found.value, attack


def _any_picture(record: AuditRecord, position: int) -> AttackRecord | None:
    for attack in deciding(record):
        if position < len(attack.images) and attack.images[position] is not None:
            return attack
    return None


def image_name(names: list[str | None], position: int) -> str | None:
    """The name at ``position``; None where the list is shorter."""
    return names[position] if position < len(names) else None


def channels(record: AuditRecord) -> int:
    """Of the images; 3, which pictures show whole, for inputs that are none."""
    shape = record.inventory.input_shape
    return shape[0] if len(shape) == 3 else 3


def what(sample: SampleRecord) -> str:
    """How an image is called in running text."""
    return (
        f"image {sample.index} ({sample.name})"
        if sample.name
        else (f"image {sample.index}")
    )


def scope(record: AuditRecord) -> str:
    """The threat model in one line, to stand beside every number."""
    model = record.threat_model
    labels = {
        "known": "labels given to the attacker",
        "inferred": "labels inferred",
        "joint": "labels optimised with the images",
        "unknown": "labels not given to the attacker",
    }
    parts = [
        phrases.sentence(model.attacker).rstrip("."),
        f"sees {model.exposure}",
        labels[labels_are(record)] if record.exposure == "gradient" else "",
    ]
    return " · ".join(part for part in parts if part)
