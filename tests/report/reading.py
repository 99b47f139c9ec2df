"""A page, read back into what the tests ask for."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from privaudit.report import render_html
from privaudit.result import AuditResult

_VOID = {"img", "meta", "link", "br", "hr", "input"}
_SHAPES = {"path", "rect", "circle", "polyline"}


class Page(HTMLParser):
    """Tags with their attributes, headings and text of one page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.unclosed: list[str] = []
        self.feed(source)
        self.close()

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag in names]

    def heading(self, level: str) -> list[str]:
        return [" ".join(text.split()) for tag, text in self.headings if tag == level]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.unclosed.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append((tag, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _SHAPES, f"<{tag}/> is not closed in HTML"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed, f"</{tag}> closes nothing"
        assert self.unclosed.pop() == tag, f"</{tag}> is out of place"

    def handle_data(self, data: str) -> None:
        if "style" in self.unclosed:
            return
        self.words.append(data)
        inside = [tag for tag in self.unclosed if tag in ("h1", "h2", "h3")]
        if inside:
            tag, text = self.headings[-1]
            self.headings[-1] = (tag, f"{text} {data}")


def page_of(result: AuditResult) -> Page:
    return Page(render_html(result.record, result.images))


def saved_page(file: Path) -> Page:
    return Page(file.read_text(encoding="utf-8"))
