"""Hard case 50: an audit is interrupted, resumed, and ends as if it never was."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, AuditResult, Budget, Client, Policy
from privaudit._controls import shipped_images
from privaudit._outcomes import Reader, Writer
from privaudit._resume import KIND, code_of
from privaudit._samples import load
from privaudit.attacks import DropoutInversion, InvertingGradients, _labels, _search
from privaudit.attacks._minimise import Schedule
from privaudit.errors import ConfigError
from privaudit.study import Store
from privaudit.study.keys import ARRAYS_FILE, RECORD_FILE
from privaudit.tape import Draw, Tape
from privaudit.types import FormOutcome, Reconstruction, Search
from tests.unit.command import Command, environment

IMAGES = 10
CUT = Schedule(iterations=12)


def conv(p: float = 0.5) -> nn.Module:
    """No closed form reads it: searches run, and draw."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 5, padding=2, stride=2), nn.Sigmoid(), nn.Flatten(),
            nn.Dropout(p), nn.Linear(4 * 36, 5),
        )  # fmt: skip


def dense() -> nn.Module:
    """A closed form is exact."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(432, 24), nn.GELU(), nn.Dropout(0.5),
            nn.Linear(24, 5),
        )  # fmt: skip


def sample(count: int = IMAGES) -> tuple[Tensor, Tensor]:
    return shipped_images(count, (3, 12, 12)), torch.arange(count) % 5


def auditor(model: nn.Module | None = None, **changed: Any) -> Auditor:
    settings: dict[str, Any] = {
        "client": Client(batch_size=1),
        "attacks": [
            "closed_form",
            DropoutInversion(schedule=CUT),
            InvertingGradients(schedule=CUT),
        ],
        "budget": Budget(),
    }
    return Auditor(conv() if model is None else model, **{**settings, **changed})


def interrupt_at(number: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the search on image ``number``."""
    real, calls = _search.search, iter(range(1000))

    def search(*arguments: Any, **named: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    patch.setattr("privaudit.attacks.dropout_inversion.search", search)


def facts(result: AuditResult) -> dict[str, Any]:
    """Everything in the record but when and how long, and what was resumed."""
    data = json.loads(result.record.model_dump_json())
    data.pop("provenance")
    data["positive_control"].pop("seconds")
    for attack in data["attacks"]:
        attack.pop("seconds")
    found = data["inventory"]["findings"]
    data["inventory"]["findings"] = [f for f in found if f["where"] != "resume"]
    return data  # type: ignore[no-any-return]


def same(one: AuditResult, other: AuditResult) -> None:
    assert facts(one) == facts(other)
    for label, attack in one.attacks.items():
        if attack.record.images and attack.state != "skipped":
            theirs = other.attacks[label].reconstructions
            assert torch.equal(attack.reconstructions, theirs), label


def codes(result: AuditResult) -> set[str]:
    return {f.code for f in result.record.inventory.findings}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """The run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return auditor().audit(sample(), resume=folder)


@pytest.mark.parametrize("at", [0, 4, 9])
def test_interrupted_and_resumed_it_ends_as_if_it_never_was(
    whole: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(at, patch)
        partial = auditor().audit(sample(), resume=tmp_path)
    text = f"partial: {at} of 10 images (dropout_inversion was running)"
    assert text in partial.verdict.line
    assert partial.verdict.word == "inconclusive"
    assert partial.verdict.exit_code == 3
    assert partial.record.partial is not None
    assert partial.record.partial.done == at
    assert len(Store(tmp_path).cells(KIND)) == IMAGES + at
    finished = auditor().audit(sample(), resume=tmp_path)
    assert finished.record.partial is None
    assert "resumed" in codes(finished)
    assert "partial" not in finished.verdict.line
    same(finished, whole)
    again = auditor().audit(sample(), resume=tmp_path)
    same(again, whole)


def test_no_attack_on_a_client_is_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        auditor().audit(sample(), resume=tmp_path)
    real, seen = _search.search, []

    def search(*arguments: Any, **named: Any) -> Any:
        seen.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr("privaudit.attacks.dropout_inversion.search", search)
    result = auditor().audit(sample(), resume=tmp_path)
    in_control = len(seen) - (IMAGES - 4)
    assert in_control in (1, 2), "the positive control is not kept"
    assert result.attacks["dropout_inversion"].record.iterations == 12 * IMAGES


def test_without_resume_it_is_the_same(tmp_path: Path) -> None:
    plain = auditor(dense(), attacks="auto").audit(sample())
    assert (
        plain.verdict.word == "leaks" or plain.attacks["closed_form"].state == "exact"
    )
    same(auditor(dense(), attacks="auto").audit(sample(), resume=tmp_path), plain)
    same(auditor(dense(), attacks="auto").audit(sample(), resume=tmp_path), plain)


@pytest.mark.parametrize("file", [RECORD_FILE, ARRAYS_FILE])
def test_a_state_cut_to_half_falls_back_and_says_so(
    whole: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        auditor().audit(sample(), resume=tmp_path)
    newest = max(Store(tmp_path).cells(KIND), key=lambda c: c.folder.stat().st_mtime_ns)
    assert newest.key.settings["attack"] == "dropout_inversion"
    assert newest.key.settings["client"] == 3
    damaged = newest.folder / file
    data = damaged.read_bytes()
    damaged.write_bytes(data[: len(data) // 2])
    finished = auditor().audit(sample(), resume=tmp_path)
    (said,) = [
        f for f in finished.record.inventory.findings if f.code == "resume-damaged"
    ]
    assert "cut or was changed" in said.text
    same(finished, whole)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"model": dense()}, "model: 'sha256:"),
    "dropout rate": ({"model": conv(0.25)}, "model: 'sha256:"),
    "seed": ({"seed": 7}, "settings.config.seed: 0 there, 7 here"),
    "mean": ({"mean": 0.5, "std": 0.25}, "settings.config.mean"),
    "budget": ({"budget": Budget(seconds=60)},
               "settings.config.budget.seconds: None there, 60.0 here"),
    "attack": ({"attacks": [DropoutInversion(schedule=Schedule(iterations=13))]},
               "iterations"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_another_audit_is_refused_with_the_differences(
    tmp_path: Path, name: str
) -> None:
    images = sample(2)
    auditor(attacks=["closed_form"]).audit(images, resume=tmp_path)
    before = {c.key.digest for c in Store(tmp_path).cells()}
    changed, difference = OTHERS[name]
    fields = {"attacks": ["closed_form"], **changed}
    with pytest.raises(ConfigError, match="another one: ") as caught:
        auditor(**fields).audit(images, resume=tmp_path)
    assert difference in str(caught.value)
    assert {c.key.digest for c in Store(tmp_path).cells()} == before


def test_other_images_labels_and_losses_are_refused(tmp_path: Path) -> None:
    images, labels = sample(2)
    only: dict[str, Any] = {"attacks": ["closed_form"]}
    auditor(**only).audit((images, labels), resume=tmp_path)
    with pytest.raises(ConfigError, match="data: 'sha256:"):
        auditor(**only).audit((images.flip(0), labels), resume=tmp_path)
    with pytest.raises(ConfigError, match="labels: 'sha256:"):
        auditor(**only).audit((images, labels.flip(0)), resume=tmp_path)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target)

    def other(output: Tensor, target: Tensor) -> Tensor:
        return 2 * nn.functional.cross_entropy(output, target)

    other.__qualname__ = loss.__qualname__
    auditor(loss=loss, **only).audit((images, labels), resume=tmp_path / "b")
    with pytest.raises(ConfigError, match="loss_and_step"):
        auditor(loss=other, **only).audit((images, labels), resume=tmp_path / "b")


def test_other_limits_are_applied_to_what_is_kept(tmp_path: Path) -> None:
    """A policy judges what the attacks gave back; it does not change it."""
    first = auditor(dense(), attacks="auto").audit(sample(3), resume=tmp_path)
    strict = Policy().with_limit("ssim", 0.3)
    second = auditor(dense(), attacks="auto", policy=strict).audit(
        sample(3), resume=tmp_path
    )
    assert "resumed" in codes(second)
    assert second.record.config.policy != first.record.config.policy


def test_a_budget_bounds_an_audit_however_often_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {
        "attacks": [DropoutInversion()], "budget": Budget(seconds=3),
    }  # fmt: skip
    with monkeypatch.context() as patch:
        interrupt_at(2, patch)
        auditor(**settings).audit(sample(3), resume=tmp_path)
    kept = [float(str(c.values["seconds"])) for c in Store(tmp_path).cells(KIND)]
    assert len(kept) == 2
    started = time.monotonic()
    result = auditor(**settings).audit(sample(3), resume=tmp_path)
    assert result.attacks["dropout_inversion"].record.seconds > sum(kept)
    # The control has its tenth besides.
    assert time.monotonic() - started < 3 - sum(kept) + 3


def test_a_leak_that_was_found_stands_and_the_line_says_partial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, calls = _labels.infer_labels, iter(range(1000))

    def infer(scene: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(scene)

    monkeypatch.setattr("privaudit.attacks.closed_form.infer_labels", infer)
    result = auditor(dense(), attacks="auto").audit(sample(5))
    assert result.verdict.word == "leaks"
    assert result.verdict.exit_code == 1
    assert "partial: 2 of 5" in result.verdict.line
    assert result.record.positive_control is None
    assert [c.code for c in result.verdict.causes] == ["partial"]
    loaded = AuditResult.load(result.save(tmp_path / "out"))
    assert loaded.judge(loaded.record.config.policy).line == result.verdict.line
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "partial: 2 of 5" in page
    assert "--resume FOLDER" in page
    assert "5 images given, 2 audited before it was interrupted" in page


def test_token_ids_are_not_resumed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(12, 3))
    ids = torch.randint(0, 20, (2, 3))
    with pytest.raises(ConfigError, match="nothing is kept"):
        Auditor(model).audit((ids, torch.tensor([0, 1])), resume=tmp_path)


def test_an_outcome_comes_back_bit_by_bit() -> None:
    masks = Tape((
        Draw("drop", 0, "dropout", torch.rand(3, 2).round(), 0.5),
        Draw("none", 0, "dropout", None, 0.0),
    ))  # fmt: skip
    outcome = Reconstruction(
        torch.rand(1, 3, 4, 4), "plateau", "why", "form", float("nan"),
        (FormOutcome("a", True, "b"),), torch.tensor([3]), ("one", "two"), masks,
        search=Search(0.25, 1 / 3, 10, 1, 5, None, ((0, float("inf")), (1, 0.1)),
                      [(0, torch.rand(3, 4, 4).bfloat16())]),
    )  # fmt: skip
    writer = Writer()
    written = json.loads(json.dumps(writer.write(outcome), allow_nan=False))
    read = Reader(writer.arrays, torch.device("cpu")).read(written)
    assert isinstance(read, Reconstruction)
    assert repr(read) == repr(outcome)
    assert read.images is not None
    assert outcome.images is not None
    assert torch.equal(read.images, outcome.images)
    assert read.search is not None
    assert read.search.pictures[0][1].dtype is torch.bfloat16
    assert read.search.loss_final == 1 / 3
    with pytest.raises(TypeError, match="a set cannot be kept"):
        Writer().write({1})


def test_code_is_told_apart_by_what_it_does() -> None:
    one, same_one = (eval(f"lambda x: x in {{'a', 'b', 'c'}} or {n}") for n in (1, 1))  # noqa: S307
    other = eval("lambda x: x in {'a', 'b', 'c'} or 2")  # noqa: S307
    assert code_of(one) == code_of(same_one) != code_of(other)
    assert code_of(None) == "none"
    script = (
        "from privaudit._resume import code_of\n"
        "print(code_of(lambda x: x in {'a', 'b', 'c', 'd', 'e'}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True,
            env=environment(PYTHONHASHSEED=str(n)),
        ).stdout
        for n in range(3)
    }  # fmt: skip
    assert len(found) == 1, "names of a set have no order that lasts"


MODEL = """
import os, signal, torch
from torch import nn

class Dense(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.GELU(),
                                 nn.Dropout(.5), nn.Linear(16, 4))
    def forward(self, x):
        Dense.calls += 1
        if Dense.calls == int(os.environ.get("STOP_AT", "0")):
            os.kill(os.getpid(), signal.SIGINT)
        return self.net(x)
"""


def test_the_command_says_partial_and_goes_on(tmp_path: Path) -> None:
    """Ctrl-C at some point of the attacks; what was finished is not begun again."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "images").mkdir()
    for index, picture in enumerate(load(6, (16, 16))):
        picture.save(tmp_path / "images" / f"{index}.png")
    running = Command(tmp_path)
    fixed = ("audit", "--model", "model.py:Dense", "--images", "images",
             "--batch-size", "1", "--max-ssim", "1",
             "--limit", "ms_ssim=1")  # fmt: skip
    partial = running(*fixed, "--resume", "kept", "--out", "a", STOP_AT="40")
    found = re.search(r"partial: (\d) of 6", partial.line)
    assert found, (partial.line, partial.stderr)
    assert 0 < int(found[1]) < 6
    assert partial.code == 3
    assert "partial" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    gated = running("gate", "a", "--max-ssim", "1", "--limit", "ms_ssim=1")
    assert gated.code == 3
    assert "partial" in gated.line
    done = running(*fixed, "--resume", "kept", "--out", "b")
    assert "partial" not in done.line
    assert "Resumed from an earlier run" in done.stderr
    other = running(*fixed, "--resume", "kept", "--out", "c", "--seed", "3")
    assert other.code == 2
    assert "seed: 0 there, 3 here" in other.line
