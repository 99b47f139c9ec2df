"""The report as PDF: the page for paper, drawn in a process of its own."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

from privaudit.errors import MissingDependencyError, ReportError
from privaudit.report.page import font, render_paper
from privaudit.report.pictures import Images
from privaudit.result import AuditRecord

PATIENCE_S = 300.0
"""Longer than any bounded report takes; a drawing that hangs ends here."""
_SCRIPT = Path(__file__).with_name("_drawing.py")
_CANNOT_LOAD = 3
_MOST_NAMED = 8


class CannotDrawError(Exception):
    """No PDF; ``missing`` says that WeasyPrint or something below it is not there."""

    def __init__(self, got: str, *, missing: bool) -> None:
        super().__init__(got)
        self.got = got
        self.missing = missing

    def explain(self, path: Path, html: Path) -> ReportError | MissingDependencyError:
        """The one error for the user: what to do, and where the HTML lies."""
        where = f"save({str(path)!r})"
        there = f"The HTML report was written to {html}."
        if not self.missing:
            return ReportError(
                where,
                expected="a PDF",
                got=self.got,
                hint=f"{there} It prints well from a browser.",
            )
        return MissingDependencyError(
            where,
            expected="WeasyPrint 69 or newer, and Pango below it",
            got=self.got,
            hint="Install: pip install 'privaudit[pdf]'; on Debian or Ubuntu also "
            "sudo apt install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0, "
            f"on macOS also brew install pango. {there}",
        )


def render_pdf(record: AuditRecord, images: Images, attachment: bytes) -> bytes:
    """Draw the report; its pictures must already be redacted.

    The same record gives the same bytes: dates in the file are those of the audit, or
    ``SOURCE_DATE_EPOCH`` where that is set.

    Args:
        record: What the page says.
        images: Where its pictures are.
        attachment: ``result.json`` as it goes into the PDF.

    Raises:
        CannotDrawError: Something is not installed, or the drawing broke off.
    """
    _require_weasyprint()
    stamp = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not stamp.isdecimal():
        stamp = str(_seconds(record))
    job = {
        "html": render_paper(record, images),
        "attachment": attachment.decode(),
        "font": base64.b64encode(font("Regular")).decode(),
        "stamp": stamp,
    }
    notes, _, pdf = _drawn(json.dumps(job).encode(), stamp).partition(b"\n")
    _warn(json.loads(notes)["replaced"])
    return pdf


def _require_weasyprint() -> None:
    """Without loading it: drawing happens in the child alone."""
    try:
        found = importlib.util.find_spec("weasyprint")
    except (ImportError, OSError, ValueError) as error:
        raise CannotDrawError(str(error), missing=True) from error
    if found is None:
        raise CannotDrawError("no package named weasyprint", missing=True)


def _drawn(job: bytes, stamp: str) -> bytes:
    path = os.pathsep.join(p for p in sys.path if p)
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_SCRIPT)],
            input=job,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": path, "SOURCE_DATE_EPOCH": stamp},
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotDrawError(
            f"no end of drawing within {PATIENCE_S:g} s", missing=False
        ) from error
    except OSError as error:
        raise CannotDrawError(str(error), missing=False) from error
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason"]
    if done.returncode == _CANNOT_LOAD:
        raise CannotDrawError(said[-1], missing=True)
    raise CannotDrawError(
        f"drawing broke off with code {done.returncode}: {said[-1]}", missing=False
    )


def _seconds(record: AuditRecord) -> int:
    """When the audit started, since 1970; 0 where the record does not say."""
    try:
        when = datetime.fromisoformat(record.provenance.started)
    except ValueError:
        return 0
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def _warn(replaced: dict[str, int]) -> None:
    if not replaced:
        return
    named = ", ".join(list(replaced)[:_MOST_NAMED])
    more = len(replaced) - _MOST_NAMED
    others = f" and {more} more" if more > 0 else ""
    count = sum(replaced.values())
    plural = "" if count == 1 else "s"
    warnings.warn(
        f"no font for {named}{others} ({count} character{plural} replaced)",
        stacklevel=6,
    )
