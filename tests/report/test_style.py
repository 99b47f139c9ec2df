"""Colours have enough contrast, in both themes; sections and templates fit together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from privaudit.errors import ConfigError
from privaudit.report import blocks, maker
from privaudit.report.sections import SECTIONS
from tests.report import build

ROOT = Path(__file__).parents[2]
CSS = (ROOT / "templates" / "style.css").read_text(encoding="utf-8")
TONES = ("critical", "warning", "good", "info", "plain")
TEXT = [
    *((ink, back) for ink in ("ink", "muted") for back in ("page", "surface")),
    *((tone, back) for tone in TONES for back in ("page", "surface", f"{tone}-soft")),
    *(("ink", f"{tone}-soft") for tone in TONES),
]
GRAPHICS = [("edge", "page"), ("edge", "surface")]


def theme(name: str) -> dict[str, str]:
    """The declared colours of one theme."""
    light, dark = CSS.split("@media screen and (prefers-color-scheme: dark)")[:2]
    part = light if name == "light" else dark.split("@media print")[0]
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", part))


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Source: WCAG 2.2, definition of contrast ratio."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_colours() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_text_has_enough_contrast(name: str) -> None:
    colours = theme(name)
    for ink, back in TEXT:
        assert contrast(colours[ink], colours[back]) >= 4.5, (name, ink, back)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_lines_that_mean_something_have_enough_contrast(name: str) -> None:
    colours = theme(name)
    for line, back in GRAPHICS:
        assert contrast(colours[line], colours[back]) >= 3, (name, line, back)


def test_every_colour_is_declared_in_both_themes_and_checked() -> None:
    checked = {name for pair in [*TEXT, *GRAPHICS] for name in pair}
    assert theme("light").keys() == theme("dark").keys() == checked | {"line"}
    rules = re.sub(r"--[a-z-]+: #[0-9a-f]{6};", "", CSS)
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(", rules)


def test_style_knows_paper_and_small_pictures() -> None:
    for text in ("@page", "@media print", "break-inside: avoid", "pixelated"):
        assert text in CSS


def test_every_block_kind_has_its_template() -> None:
    kinds = {cls.kind for cls in blocks.Block.__subclasses__()}
    templates = {p.stem for p in (ROOT / "templates" / "blocks").glob("*.html")}
    assert kinds == templates


def test_every_section_file_is_imported() -> None:
    folder = ROOT / "privaudit" / "report" / "sections"
    written = {p.stem for p in folder.glob("*.py") if p.stem != "__init__"}
    known = {m.build.__module__.rpartition(".")[2] for m in SECTIONS}
    assert written == known


def test_two_sections_in_one_place_are_refused() -> None:
    one, other = (maker.section(order=5)(lambda *_: None) for _ in range(2))
    assert maker.collect_sections({"a": one, "again": one}) == (one,)
    with pytest.raises(ConfigError, match="one section per place"):
        maker.collect_sections({"a": one, "b": other})


def test_report_imports_only_what_it_may() -> None:
    allowed = {"config", "errors", "report", "result", "verdict", "inventory"}
    for file in (ROOT / "privaudit" / "report").rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        for name in re.findall(r"(?:from|import) privaudit\.(\w+)", source):
            assert name in allowed, (file, name)
        assert not re.search(
            r"^(?:from|import) (?:torch|numpy|PIL|jinja2)", source, re.M
        )


def test_cases_say_what_they_are_called() -> None:
    words = [c.result().verdict.word for c in (build.LEAKS, build.CLEAN)]
    words += [c.result().verdict.word for c in (build.INCONCLUSIVE, build.NOT_RUN)]
    assert words == ["leaks", "no leak found", "inconclusive", "not run"]
