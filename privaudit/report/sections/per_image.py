"""One line per image: values, label, where the label is from, client."""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import Block, Cell, Column, Paragraph, Section, table
from privaudit.report.facts import Leakiest
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord

MOST_LISTED = 1000


@section(order=100)
def table_per_image(record: AuditRecord, pictures: Pictures) -> Section | None:
    """All images in their own order, each with its leakiest attack."""
    if not record.samples:
        return None
    metrics, noun = facts.per_image_metrics(record), facts.noun(record)
    every = facts.leakiest(record)
    found = facts.on_paper(record, every) if pictures.paper else every[:MOST_LISTED]
    rows = [_row(record, metrics, one) for one in sorted(found, key=_position)]
    columns = (
        Column(noun.capitalize(), numeric=True),
        Column("Name"),
        *(Column(phrases.metric(m), numeric=True) for m in metrics),
        Column("Attack", mono=True),
        Column("Label", numeric=True),
        Column("Label from"),
        Column("Label inferred", numeric=True),
        Column("Client", numeric=True),
    )
    blocks: list[Block] = [table(f"Values of every {noun}", columns, rows)]
    omitted = len(record.samples) - len(found)
    if omitted and pictures.paper:
        blocks.append(Paragraph(facts.said_on_paper(len(every))))
    elif omitted:
        blocks.append(
            Paragraph(f"The {len(found)} worst are listed, {omitted} omitted.")
        )
    return Section(
        "images",
        f"Every {noun}",
        tuple(blocks),
        "The values are those of the attack that came closest.",
        facts.scope(record),
    )


def _position(one: Leakiest) -> int:
    return one.position


def _row(
    record: AuditRecord, metrics: list[str], one: Leakiest
) -> tuple[Cell | str, ...]:
    sample = one.sample
    inferred = None
    if one.attack is not None and one.position < len(one.attack.outcomes):
        inferred = one.attack.outcomes[one.position].label
    return (
        str(sample.index),
        sample.name,
        *(_value(record, metric, one) for metric in metrics),
        one.attack.evidence.label if one.attack else phrases.DASH,
        _label(sample.label),
        sample.label_source,
        _label(inferred),
        str(sample.client),
    )


def _value(record: AuditRecord, metric: str, one: Leakiest) -> Cell:
    if one.attack is None:
        return Cell(phrases.DASH)
    score = facts.score(record, one.attack, metric, one.position)
    if score is None or score.value is None:
        return Cell((score.note if score else "") or phrases.DASH)
    beyond = one.beyond and metric == facts.main_metric(record)
    return Cell(
        phrases.number(score.value),
        "critical" if beyond else "plain",
        "beyond" if beyond else "",
    )


def _label(label: int | None) -> str:
    return phrases.DASH if label is None else str(label)
