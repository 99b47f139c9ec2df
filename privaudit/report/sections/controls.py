"""Controls: can this audit find a leak, and what do strangers score?"""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Block,
    Bullets,
    Callout,
    Column,
    Fact,
    Heading,
    KeyValues,
    Paragraph,
    Section,
    Table,
    table,
)
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord, PositiveControl


@section(order=90)
def controls_of_audit(record: AuditRecord, _: Pictures) -> Section:
    """Positive control, unrelated pairs, and the checks made before any attack."""
    blocks: list[Block] = [
        Heading("Positive control: a leak that is certainly there"),
        _positive(record.positive_control),
    ]
    if record.positive_control is not None:
        blocks.append(_positive_facts(record, record.positive_control))
    blocks.append(Heading("Unrelated pairs: what strangers score"))
    blocks.append(_pairs(record))
    blocks.append(Heading("Checks before the attacks"))
    blocks.append(_preflight(record))
    if record.preflight.notes:
        blocks.append(Bullets(tuple(map(phrases.sentence, record.preflight.notes))))
    return Section(
        "controls",
        "Controls",
        tuple(blocks),
        "Without controls a score means nothing: they show that the attacks work and "
        "that a high score is more than chance.",
        facts.scope(record),
    )


def _positive(control: PositiveControl | None) -> Callout:
    if control is None:
        return Callout("warning", "Not run", "No positive control was run.")
    detail = phrases.sentence(control.detail)
    if control.passed:
        return Callout("good", "Passed", "The attacks found the known leak.", detail)
    return Callout("warning", "Failed", "The attacks missed a known leak.", detail)


def _positive_facts(record: AuditRecord, control: PositiveControl) -> KeyValues:
    images = record.kind == "images"
    reached = (Fact("SSIM reached", phrases.number(control.ssim)),) if images else ()
    return KeyValues(
        (
            Fact("Attacked", control.model),
            *reached,
            Fact(
                "SSIM to reach" if images else "Token set recall to reach",
                phrases.number(control.limit),
            ),
            Fact("Time", phrases.seconds(control.seconds)),
        )
    )


def _pairs(record: AuditRecord) -> Table | Paragraph:
    if record.kind == "tokens":
        return Paragraph(
            "Not measured: ids are read off the gradient exactly, they do not resemble."
        )
    if not record.unrelated:
        return Paragraph("Not measured.")
    columns = (
        Column("Metric"),
        Column("95th percentile towards leakier", numeric=True),
        Column("Pairs", numeric=True),
    )
    rows = [
        (phrases.metric(u.metric), phrases.number(u.p95), f"{u.pairs:,}")
        for u in record.unrelated
    ]
    return table(
        "Scores of images that have nothing to do with each other", columns, rows
    )


def _preflight(record: AuditRecord) -> KeyValues:
    checks = record.preflight
    rounding: tuple[Fact, ...] = ()
    if checks.noise_floor is not None:
        floor = phrases.number(checks.noise_floor)
        what = "relative difference to the same step in float32; no defence"
        rounding = (Fact("Noise floor of reduced precision", floor, what),)
    return KeyValues(
        (
            *rounding,
            Fact(
                "Replay of the random draws",
                phrases.number(checks.replay_error),
                "largest difference of the outputs",
            ),
            Fact(
                f"{facts.observation(record).capitalize()} at the truth",
                phrases.number(checks.loss_at_truth),
                f"relative error of the recomputed {facts.observation(record)}",
            ),
            Fact("Second derivative", checks.double_backward),
        )
    )
