"""Original, reconstruction, difference and scores of each image, worst first."""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Block,
    Compare,
    Fact,
    Figure,
    Gallery,
    GalleryRow,
    Paragraph,
    Section,
)
from privaudit.report.facts import Leakiest
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord

MOST_SHOWN = 40
_HINT = (
    "Left of the border the original, right of it the reconstruction. Scroll sideways "
    "inside the frame, or focus it and use the arrow keys, to move the border."
)


@section(order=50)
def picture_gallery(record: AuditRecord, pictures: Pictures) -> Section | None:
    """The closest reconstruction of each image, a bounded number of them."""
    found = [one for one in facts.leakiest(record) if one.attack is not None]
    if not found or record.kind != "images":
        return None
    shown = facts.on_paper(record, found) if pictures.paper else found[:MOST_SHOWN]
    rows = tuple(_row(record, pictures, one) for one in shown)
    said = _count(record, len(found), len(shown))
    if len(shown) < len(found) and pictures.paper:
        said = f"{facts.said_on_paper(len(found))} Worst first."
    bands = phrases.bands_explained(record.config.shown_bands, facts.channels(record))
    blocks: list[Block] = [
        Paragraph(text) for text in (bands, said, _noted(record)) if text
    ]
    if not pictures.paper:
        blocks += _compare(rows[0])
    blocks.append(Gallery(rows, _control(record, pictures)))
    return Section(
        "gallery",
        "Pictures",
        tuple(blocks),
        "Per image the closest reconstruction over all attacks that count.",
        facts.scope(record),
    )


def _count(record: AuditRecord, found: int, shown: int) -> str:
    total = len(record.samples)
    none = total - found
    metric = phrases.metric(facts.main_metric(record))
    order = f"worst first by {metric}" if shown > 1 else f"by {metric}"
    images = phrases.plural(total, "image")
    without = f" {none} without a reconstruction." if none else ""
    return f"{shown} of {images} shown, {found - shown} omitted; {order}.{without}"


def _noted(record: AuditRecord) -> str:
    """What is unusual about scores that do have a value, such as a smaller window."""
    notes = {
        f"{phrases.metric(metric)}: {score.note}."
        for metric in facts.per_image_metrics(record)
        for attack in facts.deciding(record)
        for score in attack.evidence.scores.get(metric, [])
        if score.value is not None and score.note
    }
    return " ".join(sorted(notes))


def _row(record: AuditRecord, pictures: Pictures, one: Leakiest) -> GalleryRow:
    scores = _scores(record, one)
    label = one.attack.evidence.label if one.attack else ""
    return GalleryRow(
        title=f"Image {one.sample.index}",
        note=one.sample.name,
        figures=_figures(record, pictures, one, scores),
        facts=(*scores, Fact("Attack", label, mono=True)),
        tone="critical" if one.leaks else "plain",
        label=_side(record, one),
    )


def _side(record: AuditRecord, one: Leakiest) -> str:
    limit = facts.limit_in_force(record, facts.main_metric(record))
    if one.value is None or limit is None:
        return ""
    return "beyond the limit" if one.leaks else "within the limit"


def _figures(
    record: AuditRecord, pictures: Pictures, one: Leakiest, scores: tuple[Fact, ...]
) -> tuple[Figure, ...]:
    if one.attack is None:
        return ()
    of = facts.what(one.sample)
    numbers = ", ".join(f"{s.name} {s.value}" for s in scores)
    label = one.attack.evidence.label
    redacted = record.redaction
    blurred = ", blurred" if redacted == "all" else ""
    difference = ", blurred" if redacted != "none" else ""
    return (
        pictures.original(one.sample.image, of),
        pictures.figure(
            facts.image_name(one.attack.images, one.position),
            f"Reconstruction{blurred}",
            f"Reconstruction of {of} by {label}{blurred}: {numbers}",
        ),
        pictures.figure(
            facts.image_name(one.attack.differences, one.position),
            f"Difference{difference}",
            f"Difference of {of} and its reconstruction{difference}",
        ),
    )


def _scores(record: AuditRecord, one: Leakiest) -> tuple[Fact, ...]:
    if one.attack is None:
        return ()
    found = []
    for metric in facts.per_image_metrics(record):
        score = facts.score(record, one.attack, metric, one.position)
        if score is not None:
            value = phrases.number(score.value) if score.value is not None else ""
            found.append(
                Fact(phrases.metric(metric), value or score.note or phrases.DASH)
            )
    return tuple(found)


def _compare(row: GalleryRow) -> list[Block]:
    before, after = row.figures[:2]
    if before.picture is None or after.picture is None:
        return []
    return [Compare(before, after, _HINT)]


def _control(record: AuditRecord, pictures: Pictures) -> Figure | None:
    if record.unrelated_image is None:
        return None
    blurred = ", blurred" if record.redaction != "none" else ""
    return pictures.figure(
        record.unrelated_image,
        f"Control: an unrelated picture{blurred}. A reconstruction that comes no "
        "closer than this shows nothing of the original.",
        f"Unrelated control picture{blurred}",
    )
