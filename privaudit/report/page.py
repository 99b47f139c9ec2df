"""Sections and templates make one page. No script, no network, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from privaudit.errors import ReportError
from privaudit.report import phrases
from privaudit.report.blocks import Section
from privaudit.report.pictures import Images, Pictures
from privaudit.report.sections import SECTIONS
from privaudit.result import AuditRecord

if TYPE_CHECKING:
    from jinja2 import Environment

_PAGE = "page.html"


def render_html(record: AuditRecord, images: Images) -> str:
    """One self-contained page; its pictures must already be redacted.

    Raises:
        ReportError: The templates are not installed.
    """
    pictures = Pictures(images, record.redaction)
    made = [maker.build(record, pictures) for maker in SECTIONS]
    sections = [section for section in made if section is not None]
    environment = _environment(_template_folders())
    return environment.get_template(_PAGE).render(
        title=_title(record),
        sections=sections,
        version=record.provenance.privaudit,
        started=phrases.moment(record.provenance.started),
        navigation=_navigation(sections),
    )


def _title(record: AuditRecord) -> str:
    return f"{record.verdict.headline()} · {record.inventory.model} · privacy audit"


def _navigation(sections: Sequence[Section]) -> list[tuple[str, str]]:
    return [(s.anchor, s.title) for s in sections if not s.first_screen]


def _template_folders() -> list[Traversable]:
    """Where the wheel puts the templates, then where the repository keeps them."""
    package = files("privaudit")
    repository = Path(str(package)).parent
    return [package / "templates", repository / "templates"]


def _environment(folders: Sequence[Traversable]) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = [str(folder) for folder in folders if (folder / _PAGE).is_file()]
    if not found:
        raise ReportError(
            "privaudit/templates",
            expected=f"the report templates, {_PAGE} among them",
            got="none in " + " or ".join(map(str, folders)),
            hint="Install privaudit again; the templates are part of the package.",
        )
    return Environment(
        loader=FileSystemLoader(found[0]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
