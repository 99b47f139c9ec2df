"""Drawing a PDF: what is missing, what breaks, what a font lacks, what may load."""

from __future__ import annotations

import base64
import importlib.abc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from privaudit.errors import MissingDependencyError, ReportError
from privaudit.report import _drawing, pdf
from privaudit.report.page import font
from privaudit.result import AuditResult
from tests.report import build
from tests.report.pdfs import Paper, needs_weasyprint
from tests.report.reading import saved_page

ROOT = Path(__file__).parents[2]
SMALL = build.NOT_RUN.result(skipped_inputs=[])


class Unloadable(importlib.abc.MetaPathFinder):
    """What Windows, macOS and slim images say when Pango is not there."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "weasyprint":
            raise OSError("cannot load library 'gobject-2.0-0'")


def write_package(folder: Path, source: str) -> Path:
    package = folder / "fake" / "weasyprint"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    return package.parent


def refusal(result: AuditResult, path: Path) -> MissingDependencyError:
    with pytest.raises(MissingDependencyError) as caught:
        result.save(path)
    return caught.value


@pytest.mark.parametrize("how", ["absent", "finder", "library", "old"])
def test_without_the_engine_there_is_html_and_one_error(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = "cannot load library 'gobject-2.0-0'"
    if how == "absent":
        nothing: ModuleType | None = None
        monkeypatch.setitem(sys.modules, "weasyprint", nothing)
        got = "no package named weasyprint"
    elif how == "finder":
        monkeypatch.delitem(sys.modules, "weasyprint", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Unloadable(), *sys.meta_path])
    else:
        monkeypatch.delitem(sys.modules, "weasyprint", raising=False)
        source = f"raise OSError({got!r})"
        if how == "old":
            source, got = "__version__ = '68.1'", "WeasyPrint 68.1"
        monkeypatch.syspath_prepend(write_package(tmp_path, source))
    old = tmp_path / "out" / "r.pdf"
    old.parent.mkdir()
    old.write_bytes(b"an older report")
    said = str(refusal(build.LEAKS.result(), old))
    html = tmp_path / "out" / "r.html"
    for part in (
        got,
        "pip install 'privaudit[pdf]'",
        "sudo apt install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0",
        "brew install pango",
        f"The HTML report was written to {html}.",
    ):
        assert part in said
    assert saved_page(html).heading("h1") == ["Leaks"]
    assert old.read_bytes() == b"an older report"
    assert sorted(p.name for p in old.parent.iterdir()) == ["r.html", "r.pdf"]


def test_html_in_place_of_a_pdf_is_redacted_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(MissingDependencyError):
        build.LEAKS.result().save(tmp_path / "r.pdf", redact="all")
    page = (tmp_path / "r.html").read_bytes()
    assert not any(base64.b64encode(d) in page for d in build.LEAKS.images().values())


@needs_weasyprint
def test_a_drawing_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf, "PATIENCE_S", 0.01)
    with pytest.raises(ReportError, match=r"no end of drawing within 0\.01 s.*r\.html"):
        SMALL.save(tmp_path / "r.pdf")
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


@needs_weasyprint
def test_a_drawing_that_breaks_off_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise ValueError('oops')")
    monkeypatch.setattr(pdf, "_SCRIPT", script)
    with pytest.raises(ReportError, match=r"code 1: ValueError: oops.*r\.html"):
        SMALL.save(tmp_path / "out" / "r.pdf")


@needs_weasyprint
def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "r.pdf").mkdir()
    with pytest.raises(ReportError, match=r"r\.pdf.*bytes free"):
        SMALL.save(tmp_path / "r.pdf")
    assert [p.name for p in tmp_path.iterdir()] == ["r.pdf"]


@needs_weasyprint
def test_the_engine_is_loaded_in_the_child_alone(tmp_path: Path) -> None:
    folder = SMALL.save(tmp_path / "out")
    code = (
        "import sys; from privaudit.result import AuditResult;"
        "AuditResult.load(sys.argv[1]).save(sys.argv[2]);"
        "sys.exit(bool({'torch', 'weasyprint', 'fontTools'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "r.pdf")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert (tmp_path / "r.pdf").stat().st_mode & 0o777 == 0o600


@needs_weasyprint
def test_only_data_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(build.png(1))
    inside = base64.b64encode(build.png(2)).decode()
    file = (tmp_path / "x.png").as_uri()
    html = (
        f'<html lang="en"><head><link rel="attachment" href="{file}"></head><body>'
        f'<img alt="f" src="{file}"><img alt="n" src="http://127.0.0.1:9/x.png">'
        f'<img alt="d" src="data:image/png;base64,{inside}"></body></html>'
    )
    job = {
        "html": html,
        "attachment": "{}",
        "font": base64.b64encode(font("Regular")).decode(),
        "stamp": "0",
    }
    answer = pdf._drawn(json.dumps(job).encode(), "0").partition(b"\n")[2]
    paper = Paper(answer)
    assert sum(len(page.images) for page in paper.reader.pages) == 1
    assert list(paper.reader.attachments) == ["result.json"]


KNOWN = {ord(c) for c in "abcé.□&amp;"}


@pytest.mark.parametrize(
    ("text", "drawn", "replaced"),
    [
        ("abc", "abc", {}),
        ("検a検.", "□a□.", {"検": 2}),
        ("e\u0301", "é", {}),
        ("a\u202e\u200b\u00adb", "ab", {}),
        ("a\u3000b\nc", "a b\nc", {}),
        ("&amp;検", "&amp;□", {"検": 1}),
    ],
)
def test_what_the_font_lacks_is_replaced_and_counted(
    text: str, drawn: str, replaced: dict[str, int]
) -> None:
    page = f'<title>{text}</title><body><p title="{text}">{text}</p></body>'
    wanted = f'<title>{text}</title><body><p title="{text}">{drawn}</p></body>'
    assert _drawing.drawable(page, KNOWN) == (wanted, replaced)


@needs_weasyprint
def test_names_with_other_characters_warn_and_stay_in_the_alt_texts(
    tmp_path: Path,
) -> None:
    case = build.Case(ssim=(0.9,), names=["検査検.png"])
    warned = r"^no font for 検, 査 \(\d+ characters replaced\)$"
    with pytest.warns(UserWarning, match=warned) as seen:
        file = case.result(skipped_inputs=[]).save(tmp_path / "r.pdf")
    assert seen[0].filename == __file__
    paper = Paper(file.read_bytes())
    assert "□□□.png" in paper.text
    assert "検" not in paper.text
    assert "Original of image 0 (検査検.png)" in paper.alts


def test_many_missing_characters_are_summed_up() -> None:
    many = {chr(0x4E00 + i): 1 for i in range(11)}
    with pytest.warns(UserWarning, match=r"and 3 more \(11 characters replaced\)"):
        pdf._warn(many)


def test_font_has_what_the_report_writes_and_its_licence() -> None:
    known = _drawing._characters(base64.b64encode(font("Regular")).decode())
    bold = _drawing._characters(base64.b64encode(font("SemiBold")).decode())
    for character in "aZ09éßøčŁΔλ×−–…·≤∞□Жя&<>|#_/":
        assert ord(character) in known, character
        assert ord(character) in bold, character
    licence = (ROOT / "templates" / "fonts" / "OFL.txt").read_text()
    assert "SIL OPEN FONT LICENSE Version 1.1" in licence
    assert "with Reserved Font Name" not in licence
