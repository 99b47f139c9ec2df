"""How the searches went: losses in one axis, and what the first image looked like."""

from __future__ import annotations

from privaudit.report import curves, facts, phrases
from privaudit.report.blocks import (
    Block,
    Column,
    Details,
    Figure,
    Heading,
    Section,
    Strip,
    Table,
    table,
)
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AttackRecord, AuditRecord


@section(order=75)
def how_searches_went(record: AuditRecord, pictures: Pictures) -> Section | None:
    """Loss curves of all attacks, and under them a strip of pictures for each."""
    drawn = [a for a in record.attacks if curves.drawable(a)]
    shown = [a for a in record.attacks if a.iterates]
    if not (drawn or shown):
        return None
    blocks: list[Block] = []
    if drawn:
        blocks.append(curves.draw(drawn))
    for attack in shown:
        tag = curves.DIAGNOSTIC if attack.evidence.diagnostic else ""
        blocks.append(Heading(attack.title, attack.evidence.label, tag))
        blocks.append(Strip(tuple(_strip(record, attack, pictures)), small=True))
    if drawn:
        blocks.append(Details("The losses as a table", (_table(drawn),)))
    return Section(
        "searches",
        "How the searches went",
        tuple(blocks),
        "An attack that searches changes a picture step by step until what the model "
        "would share for it matches what was shared. Shown for the first image.",
        facts.scope(record),
    )


def _strip(
    record: AuditRecord, attack: AttackRecord, pictures: Pictures
) -> list[Figure]:
    """Iterates in order, then what the attack returned, then the original."""
    label = attack.evidence.label
    blurred = ", blurred" if record.redaction == "all" else ""
    sample = record.samples[0] if record.samples else None
    of = facts.what(sample) if sample else "the first image"
    figures = [
        pictures.figure(
            step.image,
            f"Iteration {step.iteration:,}",
            f"{of[0].upper()}{of[1:]} at iteration {step.iteration:,} of "
            f"{label}{blurred}",
            small=True,
        )
        for step in sorted(attack.iterates, key=lambda step: step.iteration)
    ]
    final = facts.image_name(attack.images, 0)
    if final is not None:
        alt = f"Final reconstruction of {of} by {label}{blurred}"
        figures.append(pictures.figure(final, f"Final{blurred}", alt, small=True))
    if sample is not None:
        figures.append(pictures.original(sample.image, of, small=True))
    return figures


def _table(attacks: list[AttackRecord]) -> Table:
    """One row per milestone: what each search had last seen by then."""
    ends = {a.curve[-1].iteration for a in attacks}
    last = max(ends)
    marks = {m * 10**k for k in range(10) for m in (1, 3) if m * 10**k < last}
    columns = (
        Column("Iteration", numeric=True),
        *(Column(a.evidence.label, numeric=True) for a in attacks),
    )
    rows = [
        (f"{mark:,}", *(_seen(attack, mark) for attack in attacks))
        for mark in sorted({0, *marks, *ends})
    ]
    return table("Loss at the last look up to each iteration", columns, rows)


def _seen(attack: AttackRecord, iteration: int) -> str:
    """A dash before the first look and after the end."""
    seen = [p for p in attack.curve if p.iteration <= iteration]
    if not seen or attack.curve[-1].iteration < iteration:
        return phrases.DASH
    return phrases.number(seen[-1].loss)
