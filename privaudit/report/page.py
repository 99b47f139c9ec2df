"""Sections and templates make one page. No script, no network, no torch."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privaudit.errors import ReportError
from privaudit.report import facts, phrases
from privaudit.report.blocks import Section
from privaudit.report.pictures import Images, Pictures
from privaudit.report.sections import SECTIONS
from privaudit.result import AuditRecord

if TYPE_CHECKING:
    from jinja2 import Environment

_PAGE = "page.html"
_STUDY = "study.html"
_ON_PAPER = """
text { font-family: "privaudit-inter"; }
.chart .rule-name { stroke: none; }
"""
"""WeasyPrint paints the halo of a text over the text."""
_WEIGHTS = {400: "Regular", 600: "SemiBold"}


def render_html(record: AuditRecord, images: Images) -> str:
    """One self-contained page; its pictures must already be redacted.

    Raises:
        ReportError: The templates are not installed.
    """
    return _render(record, Pictures(images, record.redaction, bands=_bands(record)))


def render_paper(record: AuditRecord, images: Images) -> str:
    """The page as the PDF shows it: a bounded set of images, everything unfolded.

    Raises:
        ReportError: The templates are not installed.
    """
    pictures = Pictures(images, record.redaction, paper=True, bands=_bands(record))
    return _render(record, pictures)


def render_study(
    title: str, sections: Sequence[Section], *, started: str, version: str
) -> str:
    """One self-contained page about many audits.

    Args:
        title: Of the page.
        sections: What it shows, in this order.
        started: UTC, ISO 8601.
        version: Of privaudit.

    Raises:
        ReportError: The templates are not installed.
    """
    environment = _environment(_template_folders())
    return environment.get_template(_STUDY).render(
        title=title,
        sections=sections,
        version=version,
        started=phrases.moment(started),
        date=started,
        navigation=_navigation(sections),
        paper=None,
    )


def _bands(record: AuditRecord) -> str:
    """Which bands pictures show, where they do not show all."""
    return phrases.bands(record.config.shown_bands, facts.channels(record))


def font(weight: str) -> bytes:
    """The shipped font, ``Regular`` or ``SemiBold``.

    Raises:
        ReportError: The templates are not installed.
    """
    return (_found(_template_folders()) / "fonts" / f"Inter-{weight}.ttf").read_bytes()


def _render(record: AuditRecord, pictures: Pictures) -> str:
    made = [maker.build(record, pictures) for maker in SECTIONS]
    sections = [section for section in made if section is not None]
    environment = _environment(_template_folders())
    return environment.get_template(_PAGE).render(
        title=_title(record),
        subject=facts.SUBJECTS[record.exposure],
        sections=sections,
        version=record.provenance.privaudit,
        started=phrases.moment(record.provenance.started),
        date=record.provenance.started,
        navigation=_navigation(sections),
        paper=_paper() if pictures.paper else None,
    )


def _paper() -> dict[str, Any]:
    """What only paper needs: the fonts, and drawings that carry their own colours."""
    colours = _light_colours(_source("style.css"))
    drawings = re.sub(
        r"var\(--([a-z-]+)\)",
        lambda m: colours[m[1]],
        _source("chart.css"),
    )
    fonts = {w: base64.b64encode(font(n)).decode() for w, n in _WEIGHTS.items()}
    return {"fonts": fonts, "drawings": drawings + _ON_PAPER}


def _light_colours(style: str) -> dict[str, str]:
    light = style.partition("@media")[0]
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", light))


def _source(name: str) -> str:
    return (_found(_template_folders()) / name).read_text(encoding="utf-8")


def _title(record: AuditRecord) -> str:
    return f"{record.verdict.headline()} · {record.inventory.model} · privacy audit"


def _navigation(sections: Sequence[Section]) -> list[tuple[str, str]]:
    return [(s.anchor, s.title) for s in sections if not s.first_screen]


def _template_folders() -> list[Traversable]:
    """Where the wheel puts the templates, then where the repository keeps them."""
    package = files("privaudit")
    repository = Path(str(package)).parent
    return [package / "templates", repository / "templates"]


def _found(folders: Sequence[Traversable]) -> Traversable:
    for folder in folders:
        if (folder / _PAGE).is_file():
            return folder
    raise ReportError(
        "privaudit/templates",
        expected=f"the report templates, {_PAGE} among them",
        got="none in " + " or ".join(map(str, folders)),
        hint="Install privaudit again; the templates are part of the package.",
    )


def _environment(folders: Sequence[Traversable]) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(str(_found(folders))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
