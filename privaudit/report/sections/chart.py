"""Values per image against the limit, drawn as inline SVG with its table."""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Block,
    Chart,
    Column,
    Details,
    Mark,
    Paragraph,
    Rule,
    RuleStyle,
    Section,
    Table,
    table,
)
from privaudit.report.facts import Leakiest
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord

MOST_DRAWN = 400
_WIDTH, _HEIGHT = 960, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 946, 20, 276


@section(order=80)
def values_per_image(record: AuditRecord, pictures: Pictures) -> Section | None:
    """One mark per image: its leakiest value over all attacks that count."""
    metric = facts.main_metric(record)
    found = [one for one in facts.leakiest(record) if one.value is not None]
    if not found:
        return None
    drawn = sorted(found[:MOST_DRAWN], key=lambda one: one.position)
    blocks: list[Block] = [_chart(record, metric, drawn)]
    if len(found) > len(drawn):
        blocks.append(
            Paragraph(
                f"The {len(drawn)} worst of {len(found)} {facts.noun(record)}s are "
                "drawn; "
                f"{len(found) - len(drawn)} omitted."
            )
        )
    listed = drawn
    if pictures.paper:
        listed = sorted(facts.on_paper(record, found), key=lambda one: one.position)
        if len(listed) < len(found):
            blocks.append(Paragraph(facts.said_on_paper(len(found), "values")))
    blocks.append(Details("The same as a table", (_table(record, metric, listed),)))
    title = f"{phrases.metric(metric)} per {facts.noun(record)}"
    return Section("chart", title, tuple(blocks), scope=facts.scope(record))


def _chart(record: AuditRecord, metric: str, drawn: list[Leakiest]) -> Chart:
    values = [one.value for one in drawn if one.value is not None]
    limit = facts.limit_in_force(record, metric)
    low = min(0.0, *values)
    high = max(1.0, *values, *([limit] if limit is not None else []))

    def y(value: float) -> float:
        return round(_BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP), 1)

    step = (_RIGHT - _LEFT) / len(drawn)
    marks = tuple(
        Mark(
            round(_LEFT + (i + 0.5) * step, 1),
            y(one.value),
            one.beyond,
            _name(record, one),
        )
        for i, one in enumerate(drawn)
        if one.value is not None
    )
    return Chart(
        anchor="values-per-image",
        title=f"{phrases.metric(metric)} of "
        f"{phrases.plural(len(drawn), facts.noun(record))}",
        description=_description(record, metric, drawn),
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        base=y(low),
        radius=round(max(2.0, min(6.0, 0.38 * step)), 1),
        marks=marks,
        rules=tuple(
            Rule(y(value), text, style)
            for value, text, style in _rules(record, metric, low, high)
        ),
        ticks=_ticks(drawn, step),
        axis=facts.noun(record).capitalize(),
    )


def _rules(
    record: AuditRecord, metric: str, low: float, high: float
) -> list[tuple[float, str, RuleStyle]]:
    grid = [low + i * (high - low) / 4 for i in range(5)]
    rules: list[tuple[float, str, RuleStyle]] = [
        (value, f"{value:.2f}", "grid") for value in grid
    ]
    limit = facts.limit_in_force(record, metric)
    if limit is not None:
        rules.append((limit, f"limit {phrases.number(limit)}", "limit"))
    for pairs in record.unrelated:
        if pairs.metric == metric and low <= pairs.p95 <= high:
            text = f"unrelated pairs, 95 %: {phrases.number(pairs.p95)}"
            rules.append((pairs.p95, text, "control"))
    return rules


def _ticks(drawn: list[Leakiest], step: float) -> tuple[tuple[float, str], ...]:
    every = max(1, -(-len(drawn) // 12))
    return tuple(
        (round(_LEFT + (i + 0.5) * step, 1), str(drawn[i].sample.index))
        for i in range(0, len(drawn), every)
    )


def _description(record: AuditRecord, metric: str, drawn: list[Leakiest]) -> str:
    beyond = sum(one.beyond for one in drawn)
    limit = facts.limit_in_force(record, metric)
    against = "no limit is set" if limit is None else f"limit {phrases.number(limit)}"
    return (
        f"One mark per {facts.noun(record)}, {against}; {beyond} of {len(drawn)} "
        "beyond it. Squares are beyond the limit, circles within. The values are in "
        "the table below."
    )


def _name(record: AuditRecord, one: Leakiest) -> str:
    side = "beyond the limit" if one.beyond else "within the limit"
    noun = facts.noun(record).capitalize()
    return f"{noun} {one.sample.index}: {phrases.number(one.value)}, {side}"


def _table(record: AuditRecord, metric: str, drawn: list[Leakiest]) -> Table:
    noun = facts.noun(record)
    columns = (
        Column(noun.capitalize(), numeric=True),
        Column(phrases.metric(metric), numeric=True),
        Column("Beyond the limit"),
    )
    rows = [
        (
            str(one.sample.index),
            phrases.number(one.value),
            "yes" if one.beyond else "no",
        )
        for one in drawn
    ]
    return table(f"{phrases.metric(metric)} per {noun}", columns, rows)
