"""Why the verdict is not clearer, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privaudit.report import phrases
from privaudit.report.blocks import Block, Callout, Heading, Section, Tone
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord

if TYPE_CHECKING:
    from privaudit.verdict import Cause

_LEADS = {
    "leaks": "The verdict stands; these points were seen beside it.",
    "no leak found": "Nothing stood in the way of the verdict; these points are worth "
    "knowing.",
    "inconclusive": "Why there is no answer, and what to do to get one.",
    "not run": "Why nothing was audited, and what to do about it.",
}


@section(order=20)
def causes_and_warnings(record: AuditRecord, _: Pictures) -> Section | None:
    """Causes first, then warnings, each with its remedy."""
    verdict = record.verdict
    if not (verdict.causes or verdict.warnings):
        return None
    blocks: list[Block] = [
        Heading(phrases.plural(len(verdict.causes), "cause"))
    ] * bool(verdict.causes)
    blocks += [_callout(cause, "Cause", "warning") for cause in verdict.causes]
    if verdict.warnings:
        blocks.append(Heading(phrases.plural(len(verdict.warnings), "note")))
    blocks += [_callout(cause, "Note", "info") for cause in verdict.warnings]
    return Section("causes", "Causes and notes", tuple(blocks), _LEADS[verdict.word])


def _callout(cause: Cause, label: str, tone: Tone) -> Callout:
    return Callout(
        tone=tone,
        label=label,
        title=phrases.sentence(cause.text),
        remedy=phrases.sentence(cause.remedy),
        where=cause.code,
    )
