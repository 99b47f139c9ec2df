"""The page in a real browser: silent, offline, whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report import build, searching
from tests.report.chromium import Page, browser, executable

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(executable() is None, reason="no Chromium is installed"),
]

BROKEN = """<!doctype html><title>broken</title>
<img src="not-there.png"><img src="http://127.0.0.1:9/x.png">
<script>console.error("oops"); nothing.at.all;</script>"""

IMAGES = """JSON.stringify([...document.images].map(
    image => image.complete && image.naturalWidth > 0))"""
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"
SCROLLING = """JSON.stringify([...document.querySelectorAll(
    '.table-frame, .chart-frame')].filter(e => e.scrollWidth > e.clientWidth)
    .map(e => e.getAttribute('aria-label')))"""
BORDER = """(() => {
    const frame = document.querySelector('.compare-frame');
    frame.scrollLeft = 100;
    const left = frame.getBoundingClientRect().left + frame.clientLeft;
    const at = query => frame.querySelector(query).getBoundingClientRect();
    return [at('.compare-before > div').left - left,
            at('.compare-after').left - left,
            frame.clientWidth - (at('.compare-before').right - left)];
})()"""


@pytest.fixture(scope="module")
def window() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def page(window: Page) -> Page:
    window.requests.clear()
    window.errors.clear()
    window.look(width=1280)
    return window


def beyond_itself(page: Page, file: Path) -> list[str]:
    """What the page asked for, itself and its own data left out."""
    own = file.resolve().as_uri()
    return [url for url in page.requests if url != own and not url.startswith("data:")]


def test_the_watch_sees_what_a_broken_page_does(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "broken.html"
    file.write_text(BROKEN)
    page.open(file)
    asked = beyond_itself(page, file)
    assert any(url.endswith("not-there.png") for url in asked)
    assert "http://127.0.0.1:9/x.png" in asked
    told = " ".join(page.errors)
    assert "oops" in told
    assert "nothing is not defined" in told
    assert "ERR_FILE_NOT_FOUND" in told
    assert page.evaluate(IMAGES) == "[false,false]"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_page_is_silent_offline_and_fits(
    case: build.Case, page: Page, tmp_path: Path, width: int, dark: bool
) -> None:
    file = case.result().save(tmp_path / "report.html")
    page.look(width=width, dark=dark)
    page.open(file)
    assert page.errors == []
    assert beyond_itself(page, file) == []
    assert "false" not in page.evaluate(IMAGES)
    assert page.evaluate(OVERFLOW) <= 0


def test_on_a_laptop_no_table_hides_a_column(page: Page, tmp_path: Path) -> None:
    file = searching.result().save(tmp_path / "report.html")
    page.open(file)
    assert page.evaluate(SCROLLING) == "[]"
    page.look(width=360)
    assert "How each attack ended" in page.evaluate(SCROLLING)


def test_colour_scheme_is_followed(page: Page, tmp_path: Path) -> None:
    page.open(build.LEAKS.result().save(tmp_path / "report.html"))
    seen = []
    for dark in (False, True):
        page.look(width=1280, dark=dark)
        seen.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert seen == ["rgb(250, 250, 247)", "rgb(19, 22, 25)"]


def test_first_screen_fits_a_laptop(page: Page, tmp_path: Path) -> None:
    page.look(width=1280, height=800)
    page.open(build.LEAKS.result().save(tmp_path / "report.html"))
    bottom = "document.querySelector('.final-line').getBoundingClientRect().bottom"
    assert page.evaluate(bottom) < 800


def test_the_border_moves_and_the_pictures_stay(page: Page, tmp_path: Path) -> None:
    page.open(build.LEAKS.result().save(tmp_path / "report.html"))
    before, after, border = page.evaluate(BORDER)
    assert abs(before) <= 1
    assert abs(after) <= 1
    assert border == pytest.approx(100, abs=4)


def test_page_prints(page: Page, tmp_path: Path) -> None:
    page.open(build.MANY.result().save(tmp_path / "report.html"))
    assert page.pdf().startswith(b"%PDF-")
    assert page.errors == []
