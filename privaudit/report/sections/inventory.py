"""What is in the model: findings, random draws, changes made for the audit only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privaudit.report import phrases
from privaudit.report.blocks import (
    Block,
    Bullets,
    Callout,
    Column,
    Details,
    Fact,
    Heading,
    KeyValues,
    Paragraph,
    Section,
    Table,
    Tone,
    table,
)
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord

if TYPE_CHECKING:
    from privaudit.inventory.records import Finding, Inventory, StochasticCall

_FEW = 6
"""So many calls are listed at once; more are counted by kind first."""
_TONES: dict[str, Tone] = {
    "critical": "critical",
    "warning": "warning",
    "info": "info",
}


@section(order=40)
def model_inventory(record: AuditRecord, _: Pictures) -> Section:
    """Findings by severity, then every random draw, then what was changed."""
    inventory = record.inventory
    ranked = sorted(inventory.findings, key=lambda f: list(_TONES).index(f.severity))
    blocks: list[Block] = [_model(record), Heading("Findings")]
    blocks += [_callout(f) for f in ranked] or [Paragraph("No findings.")]
    blocks.append(Heading("Random draws of the forward pass"))
    blocks += _draws(inventory)
    blocks.append(Heading("Changed for the audit only, and put back"))
    changes = tuple(map(phrases.sentence, inventory.changes))
    blocks.append(Bullets(changes) if changes else Paragraph("Nothing was changed."))
    return Section("inventory", "What is in the model", tuple(blocks))


def _model(record: AuditRecord) -> KeyValues:
    inventory = record.inventory
    share = inventory.trainable / inventory.parameters if inventory.parameters else 0.0
    tensors = phrases.plural(len(inventory.shared), "tensor")
    shape = inventory.input_shape
    unit = "C × H × W" if len(shape) == 3 else "token ids"
    return KeyValues(
        (
            Fact("Model", inventory.model, mono=True),
            Fact("Input", " × ".join(map(str, shape)), unit),
            Fact(
                "Parameters shared",
                f"{inventory.trainable:,} of {inventory.parameters:,}",
                f"{phrases.share(share)}, in {tensors}",
            )
            if record.exposure == "gradient"
            else Fact("Parameters", f"{inventory.parameters:,}", "on both sides"),
        )
    )


def _callout(finding: Finding) -> Callout:
    return Callout(
        tone=_TONES[finding.severity],
        label=finding.severity.capitalize(),
        title=phrases.sentence(finding.title),
        text=phrases.sentence(finding.text),
        remedy=phrases.sentence(finding.remedy),
        where=finding.where,
    )


def _draws(inventory: Inventory) -> list[Block]:
    if not inventory.stochastic:
        return [
            Paragraph(
                "None found: every random draw of a real forward pass was recorded."
                if inventory.census
                else "Not examined."
            )
        ]
    calls = inventory.stochastic
    if len(calls) <= _FEW:
        return [_every_draw(inventory)]
    unfolded = Details(f"All {len(calls):,} calls", (_every_draw(inventory),))
    return [_groups(calls), unfolded]


def _groups(calls: Sequence[StochasticCall]) -> Table:
    """Calls that differ in their place only, counted."""
    groups: dict[tuple[str, ...], list[StochasticCall]] = {}
    for call in calls:
        _, kind, p, _, remarks = _row(call)
        groups.setdefault((kind, p, remarks), []).append(call)
    columns = (
        Column("Kind"),
        Column("p", numeric=True),
        Column("Calls", numeric=True),
        Column("Values drawn", numeric=True),
        Column("First call", mono=True),
        Column("Remarks"),
    )
    rows = [
        (kind, p, f"{len(some):,}", _drawn(some), some[0].name, remarks)
        for (kind, p, remarks), some in groups.items()
    ]
    count = phrases.plural(len(calls), "random draw")
    return table(f"{count} by kind and p", columns, rows)


def _drawn(calls: Sequence[StochasticCall]) -> str:
    count = sum(math.prod(call.shape) for call in calls if call.shape)
    return f"{count:,}" if count else phrases.DASH


def _every_draw(inventory: Inventory) -> Table:
    columns = (
        Column("Call", mono=True),
        Column("Kind"),
        Column("p", numeric=True),
        Column("Mask shape", numeric=True),
        Column("Remarks"),
    )
    caption = "Random draws in call order" + (
        "" if inventory.census else ", as declared by the modules; not yet observed"
    )
    return table(caption, columns, [_row(call) for call in inventory.stochastic])


def _row(call: StochasticCall) -> tuple[str, ...]:
    remarks = [
        text
        for text, applies in (
            ("nothing drawn at p = 0", not call.active),
            ("seen only below autograd", call.hidden),
            ("cannot be replayed", not call.replayable),
            ("also draws in eval mode", call.in_eval),
        )
        if applies
    ]
    shape = " × ".join(map(str, call.shape)) or phrases.DASH
    p = phrases.DASH if call.p is None else f"{call.p:g}"
    return (call.name, call.kind, p, shape, ", ".join(remarks))
