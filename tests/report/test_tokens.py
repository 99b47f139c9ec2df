"""The report of an audit on token ids: ids instead of pictures, and no leftovers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import torch

from privaudit import Auditor, Client, Knowledge
from privaudit.result import AuditResult
from tests.models.text import Text, flat, text
from tests.report.pdfs import Paper, needs_weasyprint

IDS = torch.tensor([[23, 49, 58, 17, 59, 11], [41, 45, 16, 57, 0, 0]])
SEQUENCE = "23 49 58 17 59 11"
IMAGE_WORDS = ("image not available", "Per image", "image audited", "Worst image")


@pytest.fixture(scope="module")
def result() -> AuditResult:
    auditor = Auditor(text(Text(dropout=0.1)), client=Client(batch_size=1))
    return auditor.audit((IDS, torch.tensor([0, 2])))


def page(result: AuditResult, folder: Path, **how: str) -> str:
    return result.save(folder / "report.html", **how).read_text(encoding="utf-8")  # type: ignore[arg-type]


def test_the_page_shows_what_was_held_and_found(
    result: AuditResult, tmp_path: Path
) -> None:
    html = page(result, tmp_path)
    assert html.count(SEQUENCE) >= 2
    assert "41 45 16 57 0 0" in html
    assert "2 positions of padding" in html
    assert "This page shows token ids read out of training data" in html
    assert "Token set recall" in html
    assert "token ids of 2 of 2 samples audited" in html
    assert "not applicable: the samples are token ids" in html
    assert [word for word in IMAGE_WORDS if word in html] == []


def test_the_worst_sample_of_the_headline_is_the_one_shown(
    result: AuditResult, tmp_path: Path
) -> None:
    worst = result.worst["token_set_recall"].sample
    assert f"What was read, of sample {worst}" in page(result, tmp_path)


def test_a_set_without_an_order_is_said_to_be_one(tmp_path: Path) -> None:
    ids = torch.tensor([[5, 29, 2, 22, 49], [40, 23, 22, 27, 34]])
    html = page(Auditor(flat()).audit((ids, torch.tensor([0, 2]))), tmp_path)
    assert "no order found" in html
    assert "2 5 22 23 27 29 34 40 49" in html
    assert "without order or counts" in html


@pytest.mark.parametrize("labels", ["inferred", "joint"])
def test_labels_that_were_not_given_are_said_not_to_be(
    labels: Literal["inferred", "joint"], tmp_path: Path
) -> None:
    auditor = Auditor(flat(), knowledge=Knowledge(labels=labels))
    html = page(auditor.audit(torch.tensor([[5, 29, 2, 22, 49]])), tmp_path)
    assert "labels not given to the attacker" in html
    assert "Not given to the attacker, and not needed." in html
    assert "Read off the gradient by the attacker" not in html


@pytest.mark.parametrize("redact", ["originals", "all"])
@pytest.mark.parametrize("form", ["report.html", "result.json", "folder"])
def test_redaction_takes_the_ids_out(
    result: AuditResult, tmp_path: Path, redact: str, form: str
) -> None:
    saved = result.save(tmp_path / form, redact=redact)  # type: ignore[arg-type]
    files = [f for f in saved.rglob("*") if f.is_file()] if saved.is_dir() else [saved]
    for file in files:
        words = " ".join(file.read_text(encoding="utf-8").replace(",", " ").split())
        shown = words.count(SEQUENCE)
        assert shown == 0 if redact == "all" else shown <= 2
        if file.suffix == ".json":
            record = json.loads(file.read_text(encoding="utf-8"))
            assert [s["tokens"] for s in record["samples"]] == [None, None]
            found = record["attacks"][0]
            assert bool(found["tokens"]) == (redact == "originals")
            assert bool(found["leaked_ids"]) == (redact == "originals")


def test_a_result_read_from_disk_judges_the_same(
    result: AuditResult, tmp_path: Path
) -> None:
    again = AuditResult.load(result.save(tmp_path / "out"))
    assert again.record == result.record
    assert again.judge(again.record.config.policy) == result.verdict
    assert not again.passed(max_ssim=0.99)


@needs_weasyprint
def test_the_pdf_shows_the_ids(result: AuditResult, tmp_path: Path) -> None:
    paper = Paper(result.save(tmp_path / "report.pdf").read_bytes())
    assert SEQUENCE in paper.text
    assert [word for word in IMAGE_WORDS if word in paper.text] == []
