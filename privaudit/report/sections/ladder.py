"""What a score looks like, on the user's own image."""

from __future__ import annotations

from privaudit.report import phrases
from privaudit.report.blocks import Block, Paragraph, Section, Strip
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord

_BLURRED = "Blurred for redaction; the scores are those of the real pictures."


@section(order=60)
def picture_ladder(record: AuditRecord, pictures: Pictures) -> Section | None:
    """One picture per step, degraded until it has the score above it."""
    if not record.ladder:
        return None
    blurred = record.redaction != "none"
    figures = tuple(
        pictures.figure(
            step.image,
            f"SSIM {phrases.number(step.ssim)}",
            f"The image degraded to SSIM {phrases.number(step.ssim)}"
            + (", blurred for redaction" if blurred else ""),
        )
        for step in sorted(record.ladder, key=lambda step: step.ssim)
    )
    blocks: list[Block] = [Strip(figures)]
    if blurred:
        blocks.append(
            Paragraph(
                "Blurred for redaction; the scores are those of the real pictures."
            )
        )
    return Section("ladder", "What a score looks like", tuple(blocks), _lead(record))


def _lead(record: AuditRecord) -> str:
    which = "one of your images"
    if record.ladder_sample is not None:
        which = f"image {record.ladder_sample}"
    return (
        f"The same picture, {which}, made worse step by step. Each score is measured "
        "on the picture shown."
    )
