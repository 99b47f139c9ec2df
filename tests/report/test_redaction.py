"""Redaction: what is blurred, that it is blurred for good, and that it is recorded."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from privaudit.errors import ReportError
from privaudit.report.redact import blur, covered, stronger
from privaudit.result import AuditResult, ImageStore, Redaction
from tests.report import build
from tests.report.reading import saved_page

CASE = build.Case(ssim=(0.91, 0.34, 0.42), size=(48, 32))
ORIGINALS = {
    "images/unrelated.png",
    *(f"images/ladder-{k}.png" for k in range(4)),
    *(
        f"images/{i}-{kind}.png"
        for i in range(3)
        for kind in ("original", "difference")
    ),
}
RECONSTRUCTIONS = {f"images/{i}-reconstruction.png" for i in range(3)}
HIDDEN = {"originals": ORIGINALS, "all": ORIGINALS | RECONSTRUCTIONS}


def pixels(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB").tobytes()


@pytest.mark.parametrize("redact", ["originals", "all"])
def test_hidden_pictures_appear_nowhere(redact: Redaction, tmp_path: Path) -> None:
    folder = CASE.result().save(tmp_path / "out", redact=redact)
    page = CASE.result().save(tmp_path / "one.html", redact=redact)
    everything = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert page in everything
    for name, data in CASE.images().items():
        encoded = base64.b64encode(data)
        for file in everything:
            found = file.read_bytes()
            if name in HIDDEN[redact]:
                assert data not in found
                assert encoded not in found
        stored = (folder / name).read_bytes()
        assert (pixels(stored) != pixels(data)) == (name in HIDDEN[redact])


@pytest.mark.parametrize("redact", ["none", "originals", "all"])
def test_choice_is_recorded_and_said(redact: Redaction, tmp_path: Path) -> None:
    folder = CASE.result().save(tmp_path / "out", redact=redact)
    assert AuditResult.load(folder).record.redaction == redact
    text = saved_page(folder / "report.html").text
    assert ("Original, blurred" in text) == (redact != "none")
    assert ("Reconstruction, blurred" in text) == (redact == "all")
    assert ("Personal data" in text) == (redact != "all")


@pytest.mark.parametrize(
    ("stored", "asked", "kept"),
    [
        ("none", "none", "none"),
        ("none", "all", "all"),
        ("originals", "none", "originals"),
        ("originals", "all", "all"),
        ("all", "none", "all"),
        ("all", "originals", "all"),
    ],
)
def test_stronger_redaction_is_kept(
    stored: Redaction, asked: Redaction, kept: Redaction, tmp_path: Path
) -> None:
    folder = CASE.result().save(tmp_path / "out", redact=stored)
    again = AuditResult.load(folder).save(folder, redact=asked)
    loaded = AuditResult.load(again)
    assert loaded.record.redaction == kept
    for name in HIDDEN.get(kept, ()):
        data = loaded.images.get(name)
        assert data is not None
        assert pixels(data) != pixels(CASE.images()[name])


def test_redacting_in_place_leaves_no_original(tmp_path: Path) -> None:
    folder = CASE.result().save(tmp_path / "out")
    AuditResult.load(folder).save(folder, redact="all")
    for file in folder.rglob("*"):
        found = file.read_bytes() if file.is_file() else b""
        for data in CASE.images().values():
            assert data not in found
            assert base64.b64encode(data) not in found


def test_a_redacted_record_alone_leads_to_no_picture(tmp_path: Path) -> None:
    folder = CASE.result().save(tmp_path / "out")
    CASE.result().save(folder / "bare.json", redact="all")
    bare = AuditResult.load(folder / "bare.json")
    assert bare.record.redaction == "all"
    assert covered(bare.record, "all") == frozenset()
    page = saved_page(bare.save(tmp_path / "bare.html"))
    assert page.all("img") == []
    assert "left out by redaction" in page.text
    kept = CASE.result().save(tmp_path / "o.json", redact="originals")
    assert covered(AuditResult.load(kept).record, "all") == RECONSTRUCTIONS


def test_what_cannot_be_blurred_is_left_out(tmp_path: Path) -> None:
    torn = CASE.images()["images/0-original.png"][:-40]
    files = {**CASE.images(), "images/0-original.png": torn}
    result = AuditResult(CASE.result().record, ImageStore(files))
    folder = result.save(tmp_path / "out")
    result.save(folder, redact="originals")
    assert not (folder / "images" / "0-original.png").exists()
    page = (folder / "report.html").read_bytes()
    assert base64.b64encode(torn) not in page


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (48, 32), (224, 224), (300, 20)])
def test_little_is_left_of_a_blurred_picture(size: tuple[int, int]) -> None:
    width, height = size
    one_bit = Image.effect_noise(size, 120).convert("RGB")
    blurred = blur(build.as_png(one_bit))
    assert blurred is not None
    with Image.open(io.BytesIO(blurred)) as image:
        assert image.size == size
        # Seen at eight pixels it is the same as before; nothing finer is left.
        few = image.resize((min(8, width), min(8, height)), Image.Resampling.BOX)
        back = few.resize(size, Image.Resampling.BICUBIC)
        pairs = zip(back.tobytes(), image.convert("RGB").tobytes(), strict=True)
        assert sum(abs(a - b) for a, b in pairs) / (3 * width * height) < 8


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_all_kinds_of_png_are_blurred(mode: str) -> None:
    grey = Image.linear_gradient("L").resize((40, 40))
    if mode == "I;16":
        wide = b"".join(bytes((0, v)) for v in grey.tobytes())
        image = Image.frombytes("I;16", grey.size, wide)
    else:
        image = grey.convert(mode)
    blurred = blur(build.as_png(image))
    assert blurred is not None
    with Image.open(io.BytesIO(blurred)) as seen:
        levels = seen.convert("L").tobytes()
    assert 10 < min(levels) < max(levels) < 245


def test_nothing_but_pixels_is_kept() -> None:
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Comment", "taken at home")
    out = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(
        out, format="PNG", pnginfo=notes, icc_profile=b"profile"
    )
    blurred = blur(out.getvalue())
    assert blurred is not None
    with Image.open(io.BytesIO(blurred)) as image:
        image.load()
        assert image.info == {}


def test_other_words_are_refused() -> None:
    with pytest.raises(ReportError, match="one of none, originals, all, got 'some'"):
        stronger("none", "some")
