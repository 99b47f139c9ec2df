"""Limits used, and what the words of the verdict mean."""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Fact,
    Heading,
    KeyValues,
    Paragraph,
    Section,
    Table,
    table,
)
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord
from privaudit.verdict import TOKEN_METRICS

_OVER = {"max": "the worst image", "p95": "the worst 5 %", "mean": "the mean"}
_LEVELS = {"error": "decides", "warn": "warns", "off": "ignored"}
_WORDS = (
    "Leaks: at least one attack came closer to an image than a deciding limit allows.",
    "No leak found: every attack that the verdict needs was carried out, the positive "
    "control passed, and no value was beyond its limit.",
    "Inconclusive: something that the verdict needs failed, was stopped or is missing.",
    "Not run: no attack was carried out.",
)
_STRENGTH = {
    "strong": "Strong: every attack that the verdict needs ended exact or converged.",
    "weak": "Weak: at least one attack that the verdict needs levelled off without a "
    "match; a better attack or more time might still find something.",
}


@section(order=110)
def limits_used(record: AuditRecord, _: Pictures) -> Section:
    """The policy, the words, the strength and what a clean result bounds."""
    verdict, policy = record.verdict, record.config.policy
    blocks: list[Block] = [
        KeyValues(
            (
                Fact("Policy", policy.name, mono=True),
                Fact("Digest", record.provenance.policy_digest, mono=True),
                Fact("Evidence asked for", f"at least {policy.require}"),
            )
        ),
        _table(record),
        Bullets(_meanings(record), "What the metrics mean"),
        Heading("What the words mean"),
        Bullets(tuple(facts.worded(record, text) for text in _WORDS)),
    ]
    if verdict.strength:
        blocks.append(Paragraph(_STRENGTH[verdict.strength]))
    blocks += _bound(record)
    blocks += _off(record)
    return Section("limits", "Limits used", tuple(blocks), scope=facts.scope(record))


def _table(record: AuditRecord) -> Table:
    columns = (
        Column("Metric"),
        Column("Limit", numeric=True),
        Column("Distance from unrelated pairs", numeric=True),
        Column("In force", numeric=True),
        Column("Compared value"),
        Column("Leakier side"),
        Column("Role"),
        Column("Worst value", numeric=True),
    )
    limits = record.config.policy.for_kind(record.kind).limits
    apply = [m for m in limits if (m in TOKEN_METRICS) == (record.kind == "tokens")]
    rows = [_row(record, metric) for metric in apply]
    return table("Limits set before the audit", columns, rows)


def _row(record: AuditRecord, metric: str) -> tuple[Cell | str, ...]:
    limit = record.config.policy.for_kind(record.kind).limits[metric]
    worst = record.verdict.worst.get(metric)
    leaks = worst is not None and worst.leaks
    value = "not judged" if worst is None else phrases.number(worst.value)
    return (
        phrases.metric(metric),
        phrases.number(limit.limit),
        phrases.number(limit.margin),
        phrases.number(worst.limit) if worst else phrases.DASH,
        facts.worded(record, _OVER[limit.over]),
        "lower" if limit.lower_is_leakier else "higher",
        _LEVELS[limit.level] + (", required" if limit.required else ""),
        Cell(value, "critical" if leaks else "plain", "beyond" if leaks else ""),
    )


def _meanings(record: AuditRecord) -> tuple[str, ...]:
    tokens = record.kind == "tokens"
    limits = [m for m in record.config.policy.limits if (m in TOKEN_METRICS) == tokens]
    names = dict.fromkeys([*limits, *facts.per_image_metrics(record)])
    return tuple(
        f"{phrases.metric(n)}: {phrases.MEANINGS[n]}"
        for n in names
        if n in phrases.MEANINGS
    )


def _bound(record: AuditRecord) -> list[Block]:
    bound = record.verdict.leaking_share_upper_bound
    if bound is None:
        return []
    noun = facts.noun(record)
    samples = phrases.plural(record.verdict.samples, noun)
    return [
        Paragraph(
            f"Rule of three: no leak in {samples} means, with 95 % confidence, that at "
            f"most {phrases.share(bound)} of {noun}s like these leak to these attacks. "
            f"It assumes that the {noun}s were drawn at random."
        )
    ]


def _off(record: AuditRecord) -> list[Block]:
    """Metrics that say nothing about such samples: off, which is not 0."""
    if not record.metrics_off:
        return []
    by_reason: dict[str, list[str]] = {}
    for metric, reason in record.metrics_off.items():
        by_reason.setdefault(reason, []).append(phrases.metric(metric))
    return [
        Paragraph(f"Not measured: {', '.join(names)} ({reason.rstrip('.')}).")
        for reason, names in by_reason.items()
    ]
