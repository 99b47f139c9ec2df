"""What was held and what was found, for audits on token ids: no pictures here."""

from __future__ import annotations

from collections.abc import Sequence

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    table,
)
from privaudit.report.facts import Leakiest
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AttackRecord, AuditRecord, LeakRecord

MOST_SHOWN = 40
MOST_IDS = 64
UNKNOWN = "?"
_HIDDEN = "hidden"


@section(order=55)
def tokens_found(record: AuditRecord, pictures: Pictures) -> Section | None:
    """Sequences first, worst first; then the ids that show without an order."""
    if record.kind != "tokens":
        return None
    every = facts.leakiest(record)
    shown = facts.on_paper(record, every) if pictures.paper else every[:MOST_SHOWN]
    blocks: list[Block] = [sequences(record, shown)]
    if len(shown) < len(every):
        blocks.append(
            Paragraph(f"{len(shown)} of {len(every)} samples shown, worst first.")
        )
    sets = [(a, leak) for a in facts.deciding(record) for leak in a.leaked_ids]
    if sets:
        blocks.append(_sets(sets[:MOST_SHOWN]))
    if len(sets) > MOST_SHOWN:
        blocks.append(Paragraph(f"{MOST_SHOWN} of {len(sets)} sets shown."))
    if record.redaction == "all":
        blocks.append(Paragraph("The ids were taken out of this report."))
    return Section(
        "tokens",
        "Tokens",
        tuple(blocks),
        "Ids as the model takes them. The tokenizer turns them into words: whoever has "
        "the model has it too.",
        facts.scope(record),
    )


def sequences(record: AuditRecord, found: Sequence[Leakiest]) -> Table:
    """Per sample the ids held, those found in their order, and the scores."""
    columns = (
        Column("Sample", numeric=True),
        Column("Held", mono=True),
        Column("Found, in order", mono=True),
        Column("Token accuracy", numeric=True),
        Column("Set recall", numeric=True),
    )
    caption = f"Token ids held and found; {UNKNOWN} is a position that was not found"
    return table(caption, columns, [_row(record, one) for one in found])


def _row(record: AuditRecord, one: Leakiest) -> tuple[Cell | str, ...]:
    attack = one.attack
    sample = one.sample
    held = _HIDDEN if sample.tokens is None else _ids(sample.tokens)
    padding = len(sample.padding)
    note = f"{phrases.plural(padding, 'position')} of padding" if padding else ""
    return (
        str(sample.index),
        Cell(held, note=note),
        Cell(
            _found(record, attack, one.position), "critical" if one.beyond else "plain"
        ),
        _value(record, one, "token_accuracy"),
        _value(record, one, "token_set_recall"),
    )


def _found(record: AuditRecord, attack: AttackRecord | None, position: int) -> str:
    if record.redaction == "all":
        return _HIDDEN
    rows = [] if attack is None else attack.tokens
    row = rows[position] if position < len(rows) else None
    return "no order found" if row is None else _ids(row)


def _value(record: AuditRecord, one: Leakiest, metric: str) -> str:
    if one.attack is None:
        return phrases.DASH
    score = facts.score(record, one.attack, metric, one.position)
    if score is None or score.value is None:
        return (score.note if score else "") or phrases.DASH
    return phrases.number(score.value)


def _sets(sets: Sequence[tuple[AttackRecord, LeakRecord]]) -> Table:
    columns = (
        Column("Client", numeric=True),
        Column("Attack", mono=True),
        Column("Read from", mono=True),
        Column("Positions"),
        Column("Ids", numeric=True),
        Column("Which", mono=True),
    )
    rows = [
        (
            str(leak.client),
            attack.evidence.label,
            leak.table,
            _places(leak.positions),
            f"{len(leak.ids):,}",
            _ids(leak.ids),
        )
        for attack, leak in sets
    ]
    return table("Ids that the gradient shows, without order or counts", columns, rows)


def _places(positions: Sequence[int]) -> str:
    whole = list(positions) == list(range(positions[0], positions[-1] + 1))
    if len(positions) > 1 and whole:
        return f"{positions[0]} to {positions[-1]}"
    return ", ".join(map(str, positions))


def _ids(ids: Sequence[int | None]) -> str:
    """Ids with spaces between, a bounded number of them."""
    words = " ".join(UNKNOWN if i is None else str(i) for i in ids[:MOST_IDS])
    rest = len(ids) - MOST_IDS
    return f"{words} … {rest:,} more" if rest > 0 else words
