"""The result: what it keeps, what it reads back, and when it passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import Auditor, Client, Policy
from privaudit._controls import shipped_images
from privaudit.errors import ConfigError, ReportError
from privaudit.result import AuditResult
from privaudit.verdict import judge
from tests.contract.cases import leaky

SHAPE = (3, 12, 12)


def make(count: int = 2, size: int | None = 1) -> AuditResult:
    auditor = Auditor(
        leaky(), mean=0.5, std=0.25, client=Client(batch_size=size),
        attacks=["closed_form"],
    )  # fmt: skip
    return auditor.audit((shipped_images(count + 1, SHAPE)[1:], torch.arange(count)))


@pytest.fixture(scope="module")
def result() -> AuditResult:
    return make()


@pytest.fixture
def saved(result: AuditResult, tmp_path: Path) -> Path:
    """A result folder."""
    return result.save(tmp_path / "out")


def test_reconstructions_are_floats_in_memory_and_not_rounded(
    result: AuditResult,
) -> None:
    found = result.attacks["closed_form"].reconstructions
    truth = shipped_images(3, SHAPE)[1:]
    assert found.dtype == torch.float32
    assert found.shape == truth.shape
    assert not found.requires_grad
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert torch.allclose(found, truth, atol=1e-5)
    assert not torch.equal(found, (found * 255).round() / 255)


def test_scores_are_made_before_rounding(result: AuditResult) -> None:
    from privaudit.metrics import Ssim

    found = result.attacks["closed_form"]
    again = Ssim().score(shipped_images(3, SHAPE)[1:], found.reconstructions)
    assert [s.value for s in found.scores["ssim"]] == [s.value for s in again]


def test_saved_and_read_back(result: AuditResult, saved: Path) -> None:
    again = AuditResult.load(saved)
    assert again.record == result.record
    assert again.verdict == result.verdict
    assert AuditResult.load(saved / "result.json").record == result.record
    for attack in result.record.attacks:
        for name in attack.images:
            if name is not None:
                assert again.images.get(name) == result.images.get(name)
    with pytest.raises(ReportError, match="pictures for show only"):
        _ = again.attacks["closed_form"].reconstructions


def test_json_alone(result: AuditResult, tmp_path: Path) -> None:
    file = result.save(tmp_path / "r.json")
    text = file.read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    assert AuditResult.load(file).record == result.record


def test_no_number_is_lost_on_the_way(result: AuditResult, saved: Path) -> None:
    again = AuditResult.load(saved)
    for name, attack in result.attacks.items():
        assert again.attacks[name].scores == attack.scores
        assert [o.residual for o in again.attacks[name].record.outcomes] == [
            o.residual for o in attack.record.outcomes
        ]


def damage(file: Path, change: Any) -> None:
    data = json.loads(file.read_text(encoding="utf-8"))
    change(data)
    file.write_text(json.dumps(data), encoding="utf-8")


def test_a_truncated_file_is_named(saved: Path) -> None:
    file = saved / "result.json"
    text = file.read_text(encoding="utf-8")
    for length in (0, 1, len(text) // 2, len(text) - 2):
        file.write_text(text[:length], encoding="utf-8")
        with pytest.raises(ReportError, match=r"result\.json: expected complete JSON"):
            AuditResult.load(saved)
    file.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(ReportError, match=r"result\.json"):
        AuditResult.load(saved)


@pytest.mark.parametrize("version", ["0", "2", 1, None, "1.0"])
def test_another_schema_version_is_named(saved: Path, version: Any) -> None:
    damage(saved / "result.json", lambda d: d.update(schema_version=version))
    with pytest.raises(ReportError, match="expected schema version"):
        AuditResult.load(saved)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"leaks"', "{}"])
def test_json_that_is_no_record(saved: Path, text: str) -> None:
    (saved / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(ReportError, match="schema version"):
        AuditResult.load(saved)


CHANGES: dict[str, Any] = {
    "an extra field": lambda d: d.update(comment="no leak, trust me"),
    "an extra field below": lambda d: d["verdict"].update(passed=True),
    "a missing field": lambda d: d.pop("samples"),
    "another word": lambda d: d["verdict"].update(word="private"),
    "a state that is none": lambda d: d["attacks"][0]["evidence"].update(state="ok"),
    "a score that is text": lambda d: d["attacks"][0]["evidence"]["scores"].update(
        ssim=[{"value": "low"}]
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_named(saved: Path, change: str) -> None:
    damage(saved / "result.json", CHANGES[change])
    with pytest.raises(ReportError, match=r"result\.json: .*record as in"):
        AuditResult.load(saved)


def test_a_word_written_in_by_hand_does_not_pass(saved: Path) -> None:
    """The gate judges the evidence anew; the stored word is for reading."""

    def lie(data: dict[str, Any]) -> None:
        data["verdict"].update(word="no leak found", exit_code=0, strength="strong")

    damage(saved / "result.json", lie)
    again = AuditResult.load(saved)
    assert again.verdict.word == "no leak found"
    assert not again.passed()


def test_missing_pictures_do_not_stop_the_gate(saved: Path) -> None:
    for file in (saved / "images").iterdir():
        file.unlink()
    again = AuditResult.load(saved)
    assert not again.passed()
    assert again.images.get("images/closed_form-0000.png") is None


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="expected a readable result file"):
        AuditResult.load(tmp_path / "nothing")
    with pytest.raises(ReportError, match="expected a readable result file"):
        AuditResult.load(tmp_path)


def test_pictures_outside_the_folder_are_not_read(saved: Path) -> None:
    (saved.parent / "secret.png").write_bytes(b"secret")
    images = AuditResult.load(saved).images
    for name in ("../secret.png", str(saved.parent / "secret.png"), "images/../../x"):
        assert images.get(name) is None


@pytest.mark.parametrize("limit", [None, 0.1, 0.5, 0.9, 0.9999, 1.0])
@pytest.mark.parametrize("size", [1, None])
def test_passed_is_what_the_gate_would_say(
    limit: float | None, size: int | None
) -> None:
    found = make(size=size)
    policy = Policy() if limit is None else Policy().with_limit("ssim", limit)
    code = judge(found.record.evidence(), policy).exit_code
    assert found.passed(max_ssim=limit) is (code == 0)
    if limit != 1.0 or size is None:
        assert not found.passed(max_ssim=limit), "leaks, or was not attacked"


def test_a_limit_must_be_a_number(result: AuditResult) -> None:
    for limit in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="finite number"):
            result.passed(max_ssim=limit)


def test_an_attack_that_did_not_run_has_no_reconstructions() -> None:
    found = make(size=None)
    with pytest.raises(ReportError, match="state 'skipped' and no tensor"):
        _ = found.attacks["closed_form"].reconstructions


def test_worst_is_the_worst(result: AuditResult) -> None:
    worst = result.worst["ssim"]
    scores = result.attacks["closed_form"].scores["ssim"]
    assert worst.value == max(s.value or 0.0 for s in scores)
    assert worst.sample is not None
    assert scores[worst.sample].value == worst.value
    assert worst.leaks
