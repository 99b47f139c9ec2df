"""A PDF, read back into what the tests ask for."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from io import BytesIO
from typing import Any

import pytest
from pypdf import PdfReader

needs_weasyprint = pytest.mark.skipif(
    importlib.util.find_spec("weasyprint") is None, reason="extra pdf is not installed"
)


class Paper:
    """Text, bookmarks, structure and attachments of one file."""

    def __init__(self, data: bytes) -> None:
        self.reader = PdfReader(BytesIO(data))
        self.root: Any = self.reader.trailer["/Root"]

    @cached_property
    def pages(self) -> list[str]:
        """Words of each page. Ligatures and kerning may split or join them."""
        return [" ".join(p.extract_text().split()) for p in self.reader.pages]

    @property
    def text(self) -> str:
        return " ".join(self.pages)

    @property
    def bookmarks(self) -> list[tuple[int, str]]:
        return list(_flat(self.reader.outline, 1))

    @cached_property
    def alts(self) -> list[str | None]:
        """Alternative text of each figure, None where it has none."""
        return [
            None if (alt := node.get("/Alt")) is None else str(alt)
            for node in self.nodes()
            if node.get("/S") == "/Figure"
        ]

    @property
    def tags(self) -> Counter[str]:
        return Counter(str(node.get("/S")) for node in self.nodes())

    @property
    def fonts(self) -> set[str]:
        """Names of all fonts without the mark of a subset."""
        return {
            str(font.get_object()["/BaseFont"]).partition("+")[2]
            for page in self.reader.pages
            for font in page["/Resources"]["/Font"].values()  # type: ignore[index]
        }

    def nodes(self) -> Iterator[Any]:
        """The structure tree, top down."""
        waiting = [self.root["/StructTreeRoot"]["/K"]]
        while waiting:
            node = waiting.pop().get_object()
            if isinstance(node, list):
                waiting += [k for k in reversed(node) if hasattr(k, "get_object")]
            elif hasattr(node, "get") and node.get("/Type") == "/StructElem":
                yield node
                waiting.append(node.get("/K", []))


def _flat(outline: Any, level: int) -> Iterator[tuple[int, str]]:
    for entry in outline:
        if isinstance(entry, list):
            yield from _flat(entry, level + 1)
        else:
            yield level, str(entry.title)
