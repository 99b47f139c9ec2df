"""Writing a result: the record alone, one page, or a folder with everything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from privaudit.errors import ReportError
from privaudit.report.files import make_folder, remove_file, write_file
from privaudit.report.page import render_html
from privaudit.report.redact import (
    covered,
    picture_names,
    redacted_images,
    stronger,
    without_pictures,
)
from privaudit.result import RESULT_FILE, AuditRecord, AuditResult

REPORT_FILE = "report.html"
_FORMS = ".json, .html, or a folder (no suffix)"


def write(result: AuditResult, path: Path, *, redact: str = "none") -> Path:
    """Write ``result`` in the form that the suffix of ``path`` asks for.

    Args:
        result: Record and pictures.
        path: ``.json``, ``.html``, or a folder without suffix.
        redact: ``none``, ``originals`` or ``all``; a stronger redaction that the
            result already carries is kept.

    Returns:
        ``path``.

    Raises:
        ReportError: Unknown suffix or redaction, or the place cannot be written.
    """
    suffix = path.suffix.lower()
    _check_suffix(path, suffix)
    redaction = stronger(result.record.redaction, redact)
    record = result.record.model_copy(update={"redaction": redaction})
    if suffix == ".json":
        make_folder(path.parent)
        bare = result.record if redaction == "none" else None
        write_file(path, as_json(bare or without_pictures(result.record, redaction)))
        return path
    images = redacted_images(result.record, result.images, redaction)
    if suffix == ".html":
        make_folder(path.parent)
        write_file(path, render_html(record, images).encode())
    else:
        _write_folder(path, record, images)
    return path


def as_json(record: AuditRecord) -> bytes:
    """The record as it reaches disk."""
    return (record.model_dump_json(indent=2) + "\n").encode()


def _check_suffix(path: Path, suffix: str) -> None:
    if suffix in ("", ".json", ".html"):
        return
    later = suffix == ".pdf"
    raise ReportError(
        f"save({str(path)!r})",
        expected=_FORMS,
        got="a PDF, which comes in a later version" if later else f"suffix {suffix!r}",
        hint="HTML is available, and prints well."
        if later
        else "Change the suffix, or leave it out to get a folder.",
    )


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
