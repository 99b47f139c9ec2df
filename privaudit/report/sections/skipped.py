"""Inputs that could not be audited."""

from __future__ import annotations

from privaudit.report import phrases
from privaudit.report.blocks import Column, Section, table
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord


@section(order=140)
def skipped_inputs(record: AuditRecord, _: Pictures) -> Section:
    """Name and reason of each, so that nothing is missing in silence."""
    rows = [(s.name, phrases.sentence(s.reason)) for s in record.skipped_inputs]
    lead = (
        f"{phrases.plural(len(rows), 'input')} could not be audited."
        if rows
        else "None: every input was audited."
    )
    columns = (Column("Input"), Column("Reason"))
    blocks = (table("Inputs left out", columns, rows),) if rows else ()
    return Section("skipped", "Skipped inputs", blocks, lead)
