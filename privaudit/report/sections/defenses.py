"""What stands between client and attacker, and what the attacker does about it."""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import Block, Bullets, Column, Section, table
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AttackRecord, AuditRecord


@section(order=38)
def defenses_met(record: AuditRecord, _: Pictures) -> Section | None:
    """Defenses that were stated or found, and how attacks with and without know-how
    fared."""
    seen = record.inventory.detections
    if not seen:
        return None
    rows = [
        (d.defense, f"{d.confidence:.2f}", d.evidence, _settings(record, d.defense))
        for d in seen
    ]
    columns = (
        Column("Defense", mono=True),
        Column("Confidence", numeric=True),
        Column("What speaks for it"),
        Column("Settings", mono=True),
    )
    blocks: list[Block] = [table("Defenses between client and attacker", columns, rows)]
    blocks.append(Bullets(tuple(_done(record)), "What the attacker does about it"))
    open_to = [
        f"{f.title.removeprefix('Defense: ')}: {f.text}"
        for f in record.inventory.findings
        if f.code == "defense"
    ]
    if open_to:
        blocks.append(Bullets(tuple(open_to), "What it leaves open"))
    attacks = [a for a in record.attacks if a.evidence.scores.get("ssim")]
    if any(a.countermeasures for a in attacks) and len(attacks) > 1:
        blocks.append(
            table(
                "Attacks on defended data",
                (
                    Column("Attack", mono=True),
                    Column("Answers with"),
                    Column("Highest SSIM", numeric=True),
                ),
                [_attack(a) for a in attacks],
            )
        )
    return Section(
        "defenses",
        "Defenses",
        tuple(blocks),
        "A defense is worth what it costs the attacker who knows of it.",
        facts.scope(record),
    )


def _settings(record: AuditRecord, name: str) -> str:
    for given in record.config.defenses:
        if given.name == name:
            return ", ".join(f"{n}={v}" for n, v in given.settings.items())
    return ""


def _done(record: AuditRecord) -> list[str]:
    used = list(dict.fromkeys(c for a in record.attacks for c in a.countermeasures))
    if not used:
        chosen = record.config.countermeasures
        if chosen == "none":
            return [
                "Nothing, on request (countermeasures='none'): an attacker who knows "
                "of the defense may get more than is shown here."
            ]
        return ["Nothing: no countermeasure is known here that answers it."]
    notes = [n for a in record.attacks for n in a.countermeasure_notes]
    return [f"Answered by: {', '.join(used)}.", *dict.fromkeys(notes)]


def _attack(attack: AttackRecord) -> tuple[str, str, str]:
    known = [s.value for s in attack.evidence.scores["ssim"] if s.value is not None]
    return (
        attack.evidence.label,
        ", ".join(attack.countermeasures) or "nothing",
        phrases.number(max(known, default=None)),
    )
