"""The PDF: whole, tagged, the same everywhere and every time."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
from PIL import Image
from PIL.Image import Resampling

from privaudit.report.page import render_paper
from privaudit.report.save import as_json
from privaudit.result import AuditResult
from tests.report import build, searching
from tests.report.pdfs import Paper, needs_weasyprint
from tests.report.reading import Page, page_of

pytestmark = needs_weasyprint


def drawn(result: AuditResult, folder: Path, redact: str = "none") -> bytes:
    return result.save(folder / "r.pdf", redact=redact).read_bytes()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One report with everything in it, an odd name included; drawn once."""
    with pytest.warns(UserWarning, match=r"^no font for 検 \(1 character replaced\)$"):
        return drawn(searching.result(), tmp_path_factory.mktemp("pdf"))


@pytest.fixture(scope="module")
def paper(data: bytes) -> Paper:
    return Paper(data)


@pytest.fixture(scope="module")
def source() -> Page:
    result = searching.result()
    return Page(render_paper(result.record, result.images))


def test_title_language_and_tags_are_set(paper: Paper) -> None:
    assert paper.reader.metadata is not None
    model = "torchvision.models.vision_transformer.VisionTransformer"
    assert paper.reader.metadata.title == f"leaks · {model} · privacy audit"
    assert paper.root["/Lang"] == "en"
    assert paper.root["/MarkInfo"]["/Marked"] == True  # noqa: E712 - not a bool of Python
    assert paper.root["/ViewerPreferences"]["/DisplayDocTitle"] == True  # noqa: E712
    tags = paper.tags
    for name in ("/H1", "/H2", "/H3", "/Table", "/TH", "/TD", "/Figure", "/L", "/P"):
        assert tags[name] > 0, name
    assert tags["/H1"] == 1


def test_no_conformance_is_claimed_that_nothing_has_checked(data: bytes) -> None:
    assert b"pdfuaid" not in data
    assert b"pdfaid" not in data


def test_bookmarks_follow_the_headings(paper: Paper, source: Page) -> None:
    top = [title for level, title in paper.bookmarks if level == 2]
    assert [title.rstrip() for title in top] == source.heading("h2")
    assert paper.bookmarks[0] == (1, "Leaks")
    assert (3, "Findings") in paper.bookmarks


def test_every_page_has_its_number(paper: Paper) -> None:
    count = len(paper.pages)
    assert 5 < count < 30
    for i, text in enumerate(paper.pages, 1):
        assert re.search(rf"\b{i} / {count}\b", text), i
    assert "VisionTransformer · 3 images audited" in paper.pages[2]


def test_contents_lead_to_pages(paper: Paper, source: Page) -> None:
    first = paper.pages[0]
    for name in source.heading("h2"):
        found = re.search(rf"{name} ?\.+ ?(\d+)", first)
        assert found, name
        assert name in paper.pages[int(found[1]) - 1]


def test_record_is_attached(paper: Paper) -> None:
    assert list(paper.reader.attachments) == ["result.json"]
    (attached,) = paper.reader.attachments["result.json"]
    assert attached == as_json(searching.result().record)


def test_verdict_and_what_is_folded_on_screen_are_printed(paper: Paper) -> None:
    text = paper.text
    result = searching.result()
    for said in (
        result.verdict.line,
        "Personal data",
        "The losses as a table",
        "blocks.11.drop#0",
        "Package versions",
        "All settings of this attack",
        "diagnostic: uses what no attacker has",
        # Inside drawings.
        "limit 0.5000",
        "at the truth: dropout_inversion",
    ):
        assert said in text, said
    details = page_of(result).source
    assert details.count("<details>") > 3
    assert "<details" not in render_paper(result.record, result.images)


def test_every_figure_has_its_words(paper: Paper, source: Page) -> None:
    alts = paper.alts
    assert None not in alts
    wanted = [image["alt"] for image in source.all("img")]
    assert len(wanted) > 20
    assert sorted(a for a in alts if a and a in wanted) == sorted(
        w or "" for w in wanted
    )
    rest = [a for a in alts if a not in wanted]
    assert len(rest) == 4
    for start in ("SSIM 0.9100 on a", "SSIM of 3", "Losses of 3", "MMD of 12"):
        assert any(alt and alt.startswith(start) for alt in rest), start
    assert any(a and "2 of 3 beyond" not in a and "1 of 3 beyond" in a for a in rest)


def test_only_the_shipped_font_is_used(paper: Paper) -> None:
    assert paper.fonts == {"privaudit-inter", "privaudit-inter-Semi-Bold"}


def test_nothing_moves_loads_or_runs(data: bytes, paper: Paper) -> None:
    assert "/AA" not in paper.root
    assert "/OpenAction" not in paper.root
    for name in (b"/JavaScript", b"/Launch", b"/URI", b"/SubmitForm"):
        assert name not in data


def test_two_runs_give_the_same_bytes(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert drawn(searching.result(), tmp_path) == data


@pytest.mark.slow
def test_a_given_date_is_used_and_gives_the_same_bytes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = build.NOT_RUN.result(skipped_inputs=[])
    plain = drawn(result, tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    one, other = (drawn(result, tmp_path) for _ in range(2))
    assert one == other != plain
    stamp = Paper(one).root["/Names"]["/EmbeddedFiles"]["/Names"][1].get_object()
    when = stamp["/EF"]["/F"].get_object()["/Params"]["/ModDate"]
    assert str(when).startswith("D:20231114221320")


def pixels(paper: Paper) -> set[bytes]:
    """Every picture of the file at the size of those of the tests."""
    return {
        image.image.convert("RGB").resize((32, 32), Resampling.NEAREST).tobytes()
        for page in paper.reader.pages
        for image in page.images
        if image.image is not None
    }


def test_redacted_pictures_and_names_are_not_in_the_file(
    paper: Paper, tmp_path: Path
) -> None:
    redacted = Paper(drawn(searching.result(skipped_inputs=[]), tmp_path, "all"))
    given = set()
    for data in searching.images().values():
        with Image.open(io.BytesIO(data)) as image:
            given.add(image.convert("RGB").tobytes())
    assert len(given & pixels(paper)) > 20
    assert len(pixels(redacted)) > 20
    assert not given & pixels(redacted)
    (attached,) = redacted.reader.attachments["result.json"]
    assert b"images/" not in attached
    assert b'"redaction": "all"' in attached
    assert "Personal data" not in redacted.text
    assert "Original, blurred" in redacted.text


@pytest.mark.parametrize("case", ["CLEAN", "INCONCLUSIVE"])
def test_other_verdicts_are_drawn_too(case: str, tmp_path: Path) -> None:
    result: AuditResult = getattr(build, case).result(skipped_inputs=[])
    paper = Paper(drawn(result, tmp_path))
    assert result.verdict.line in paper.text
    assert None not in paper.alts


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="poppler is not there")
def test_no_word_leaves_the_margins(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.pdf").write_bytes(data)
    boxes = subprocess.run(
        ["pdftotext", "-bbox", str(tmp_path / "r.pdf"), "-"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    right = [float(x) for x in re.findall(r'xMax="([\d.]+)"', boxes)]
    left = [float(x) for x in re.findall(r'xMin="([\d.]+)"', boxes)]
    millimetre = 72 / 25.4
    assert len(right) > 1000
    assert max(right) <= (210 - 16) * millimetre + 1
    assert min(left) >= 16 * millimetre - 1
