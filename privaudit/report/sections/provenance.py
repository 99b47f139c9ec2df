"""Where the numbers come from, all settings, and lines to sign on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from privaudit.config import AuditConfig
from privaudit.report import phrases
from privaudit.report.blocks import (
    Column,
    Details,
    Fact,
    Heading,
    KeyValues,
    Section,
    Signature,
    Table,
    table,
)
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord, Provenance

_REDACTION = {
    "none": "none: originals and reconstructions are shown",
    "originals": "originals, differences and control pictures are blurred; names stay",
    "all": "originals, differences, control pictures and reconstructions are blurred; "
    "names stay",
}


@section(order=130)
def where_from(record: AuditRecord, _: Pictures) -> Section:
    """Digests, versions, machine, command, settings, signature."""
    source = record.provenance
    packages = table(
        "Packages",
        (Column("Package", mono=True), Column("Version", mono=True)),
        sorted(source.packages.items()),
    )
    return Section(
        "provenance",
        "Provenance",
        (
            KeyValues(_digests(source)),
            KeyValues(
                (*_machine(source), Fact("Redaction", _REDACTION[record.redaction]))
            ),
            Details("Package versions", (packages,)),
            Heading("Settings of the audit"),
            _settings(record),
            Heading("Signature"),
            Signature(
                "Tested and reviewed by the persons responsible:",
                ("Name", "Date", "Signature"),
            ),
        ),
    )


def _digests(source: Provenance) -> tuple[Fact, ...]:
    dirty = " with uncommitted changes" if source.git_dirty else ""
    revision = f"{source.git_revision}{dirty}" if source.git_revision else "not known"
    return (
        Fact("Model digest", source.model_digest, mono=True),
        Fact("Data digest", source.data_digest, mono=True),
        Fact("Policy digest", source.policy_digest, mono=True),
        Fact("Code revision", revision, mono=True),
        Fact("Command", shlex.join(source.command) or "not known", mono=True),
    )


def _machine(source: Provenance) -> tuple[Fact, ...]:
    memory = (
        "" if source.memory_gib is None else f", {source.memory_gib:.1f} GiB memory"
    )
    cores = phrases.plural(source.cores, "core")
    threads = phrases.plural(source.threads, "thread")
    return (
        Fact("Started", phrases.moment(source.started)),
        Fact("Time", phrases.seconds(source.seconds)),
        Fact("privaudit", source.privaudit),
        Fact("Python", source.python),
        Fact("Platform", source.platform),
        Fact("Processor", f"{source.processor}, {cores}, {threads}{memory}"),
        Fact("Device", source.device),
    )


def _redaction(record: AuditRecord) -> Fact:
    return Fact("Redaction", _REDACTION[record.redaction])


def _settings(record: AuditRecord) -> Table:
    usual = dict(_flat(AuditConfig().model_dump(mode="json", exclude={"policy"})))
    rows = [
        (name, phrases.setting(value), _source(usual, name, value))
        for name, value in _flat(
            record.config.model_dump(mode="json", exclude={"policy"})
        )
    ]
    columns = (
        Column("Setting", mono=True),
        Column("Value", mono=True),
        Column("Source"),
    )
    return table("Settings given and resolved", columns, rows)


def _source(usual: dict[str, Any], name: str, value: Any) -> str:
    return "default" if name in usual and usual[name] == value else "given"


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
