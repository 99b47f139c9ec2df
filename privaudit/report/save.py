"""Writing a result: the record alone, one page, a PDF, or a folder with everything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from privaudit.errors import ReportError
from privaudit.report.files import make_folder, remove_file, write_file
from privaudit.report.page import render_html
from privaudit.report.pdf import CannotDrawError, render_pdf
from privaudit.report.pictures import Images
from privaudit.report.redact import (
    RedactedImages,
    covered,
    picture_names,
    redacted_images,
    stronger,
    without_pictures,
    without_tokens,
)
from privaudit.result import RESULT_FILE, AuditRecord, AuditResult, Redaction

REPORT_FILE = "report.html"
_FORMS = ".json, .html, .pdf, or a folder (no suffix)"


def write(result: AuditResult, path: Path, *, redact: str = "none") -> Path:
    """Write ``result`` in the form that the suffix of ``path`` asks for.

    Args:
        result: Record and pictures.
        path: ``.json``, ``.html``, ``.pdf``, or a folder without suffix. A folder gets
            no PDF; save one into it where it is wanted.
        redact: ``none``, ``originals`` or ``all``; a stronger redaction that the
            result already carries is kept.

    Returns:
        ``path``.

    Raises:
        ReportError: Unknown suffix or redaction, or the place cannot be written.
        MissingDependencyError: A PDF was asked for and cannot be drawn here; the HTML
            report lies beside it.
    """
    suffix = path.suffix.lower()
    _check_suffix(path, suffix)
    redaction = stronger(result.record.redaction, redact)
    original = without_tokens(result.record, redaction)
    record = original.model_copy(update={"redaction": redaction})
    if suffix == "":
        images = redacted_images(result.record, result.images, redaction)
        _write_folder(path, record, images)
        return path
    make_folder(path.parent)
    shown = RedactedImages(result.record, result.images, redaction)
    if suffix == ".html":
        write_file(path, render_html(record, shown).encode())
    elif suffix == ".json":
        write_file(path, as_json(_alone(original, redaction)))
    else:
        _write_pdf(path, record, shown, as_json(_alone(original, redaction)))
    return path


def _alone(record: AuditRecord, redaction: Redaction) -> AuditRecord:
    """The record without its pictures: a redacted one names none that it hides."""
    return record if redaction == "none" else without_pictures(record, redaction)


def as_json(record: AuditRecord) -> bytes:
    """The record as it reaches disk."""
    return (record.model_dump_json(indent=2) + "\n").encode()


def _check_suffix(path: Path, suffix: str) -> None:
    if suffix in ("", ".json", ".html", ".pdf"):
        return
    raise ReportError(
        f"save({str(path)!r})",
        expected=_FORMS,
        got=f"suffix {suffix!r}",
        hint="Change the suffix, or leave it out to get a folder.",
    )


def _write_pdf(
    path: Path, record: AuditRecord, images: Images, attachment: bytes
) -> None:
    """Where nothing can draw it, the report is there as HTML, and the error says so."""
    try:
        pdf = render_pdf(record, images, attachment)
    except CannotDrawError as error:
        html = path.with_suffix(".html")
        write_file(html, render_html(record, images).encode())
        raise error.explain(path, html) from error
    write_file(path, pdf)


def _write_folder(
    folder: Path, record: AuditRecord, images: Mapping[str, bytes]
) -> None:
    """Blurred pictures first, so that no record ever claims more than was done."""
    make_folder(folder)
    stale = _pictures_of_older_result(folder) | set(picture_names(record))
    hidden = covered(record, record.redaction)
    for name in sorted(stale - images.keys()):
        remove_file(folder / name)
    _write_images(folder, {n: d for n, d in images.items() if n in hidden})
    write_file(folder / RESULT_FILE, as_json(record))
    _write_images(folder, {n: d for n, d in images.items() if n not in hidden})
    write_file(folder / REPORT_FILE, render_html(record, images).encode())


def _write_images(folder: Path, images: Mapping[str, bytes]) -> None:
    for name, data in images.items():
        make_folder((folder / name).parent)
        write_file(folder / name, data)


def _pictures_of_older_result(folder: Path) -> set[str]:
    try:
        return set(picture_names(AuditResult.load(folder).record))
    except ReportError:
        return set()
