"""Draws one page as PDF, in a process of its own. A script: `pdf.py` starts it.

Standard input: JSON with html, attachment, stamp and font (base64). Standard output:
one line of JSON with what the reader should know, then the PDF.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Container
from datetime import UTC, datetime
from typing import Any, BinaryIO

MISSING = 3
"""Exit code: WeasyPrint or something below it cannot be loaded."""
OLDEST = 69
"""Source: CVE-2026-49452 is fixed in 69.0."""
_TAG = re.compile(r"(<[^>]*>)")
_INVISIBLE = ("Cf", "Cc")
_STAND_IN = "□"


def main() -> int:
    """Read the job, draw, answer."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = json.load(sys.stdin.buffer)
    try:
        weasyprint = importlib.import_module("weasyprint")
    except (ImportError, OSError) as error:
        return _missing(str(error))
    if int(weasyprint.__version__.partition(".")[0]) < OLDEST:
        return _missing(f"WeasyPrint {weasyprint.__version__}")
    _draw(weasyprint, job, answer)
    return 0


def _missing(what: str) -> int:
    print(what, file=sys.stderr)
    return MISSING


def _draw(weasyprint: Any, job: dict[str, str], answer: BinaryIO) -> None:
    html, replaced = drawable(job["html"], _characters(job["font"]))
    when = datetime.fromtimestamp(int(job["stamp"]), UTC)
    attachment = weasyprint.Attachment(
        string=job["attachment"],
        name="result.json",
        description="The record that this report was written from",
        created=when,
        modified=when,
        relationship="Source",
    )
    fetcher = weasyprint.urls.URLFetcher(allowed_protocols=("data",))
    pdf = weasyprint.HTML(string=html, url_fetcher=fetcher).write_pdf(
        pdf_tags=True, attachments=[attachment]
    )
    with answer:
        answer.write(json.dumps({"replaced": replaced}).encode() + b"\n" + pdf)


def _characters(font: str) -> Container[int]:
    tools = importlib.import_module("fontTools.ttLib")
    characters: Container[int] = tools.TTFont(
        io.BytesIO(base64.b64decode(font))
    ).getBestCmap()
    return characters


def drawable(html: str, known: Container[int]) -> tuple[str, dict[str, int]]:
    """The page with what the font lacks replaced, and how often that was done.

    Text only: alternative texts and the title are not drawn and keep every character.
    Letters and their accents are joined first, as names from macOS come apart.
    """
    head, body, rest = html.partition("<body")
    replaced: Counter[str] = Counter()

    def fitting(character: str) -> str:
        if character in " \n\t" or ord(character) in known:
            return character
        if character.isspace():
            return " "
        if unicodedata.category(character) in _INVISIBLE:
            return ""
        replaced[character] += 1
        return _STAND_IN

    parts = _TAG.split(rest)
    for i, part in enumerate(parts):
        if not part.startswith("<") and not part.isascii():
            parts[i] = "".join(map(fitting, unicodedata.normalize("NFC", part)))
    return head + body + "".join(parts), dict(replaced)


if __name__ == "__main__":
    sys.exit(main())
