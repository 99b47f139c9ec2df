"""One audit per cut: kept, resumed, summed up in words, and drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit import Auditor, Budget, Split
from privaudit._controls import shipped_images
from privaudit.attacks import Rmle
from privaudit.errors import ConfigError
from privaudit.inventory.records import SplitCandidate
from privaudit.priors.diffusion import Diffusers
from privaudit.session.features import FeatureSession
from privaudit.study import sweep_page
from privaudit.study.sweep import MOST_CUTS, SweepResult, SweepRow, spread
from privaudit.study.sweep import _key as cell_key
from tests.unit.command import Command
from tests.unit.test_split_audit import Small

SHORT = Budget(seconds=20)
CUTS = ["stem", "narrow"]


@pytest.fixture
def images() -> Tensor:
    return shipped_images(2, (3, 16, 16))


def auditor(**more: Any) -> Auditor:
    attack = Rmle(iterations=300)
    return Auditor(Small(), split="stem", attacks=[attack], budget=SHORT, **more)


def test_each_cut_gets_its_leak_and_its_cost(images: Tensor, tmp_path: Path) -> None:
    study = auditor().sweep(images, CUTS, out=tmp_path)
    stem, narrow = study.result.rows
    assert (stem.name, narrow.name) == ("stem", "narrow")
    assert stem.word == "leaks"
    assert stem.ssim_worst is not None
    assert narrow.ssim_worst is not None
    assert stem.ssim_worst > narrow.ssim_worst
    assert stem.split is not None
    assert narrow.split is not None
    assert narrow.split.bytes_per_image == 4 * 4 * 2 * 2
    assert stem.split.client_flops == 2 * 48 * 48 * 16
    assert study.result.total_flops == pytest.approx(
        (narrow.split.client_flops or 0) + 2 * 16 * 5
    )
    assert study.pictures["stem"]["reconstruction"].shape == (2, 3, 16, 16)
    assert study.result.complete


def test_finished_cuts_are_not_audited_again(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = auditor().sweep(images, CUTS[:1], out=tmp_path)
    assert first.computed == 1
    again = auditor().sweep(images, CUTS, out=tmp_path)
    assert again.computed == 1
    assert again.result.rows[0] == first.result.rows[0]
    monkeypatch.setattr(
        FeatureSession, "audit", lambda *_: pytest.fail("audited again")
    )
    assert auditor().sweep(images, CUTS, out=tmp_path).computed == 0
    with pytest.raises(pytest.fail.Exception, match="audited again"):
        auditor(seed=1).sweep(images, CUTS[:1], out=tmp_path)


def test_another_prior_is_another_cell(images: Tensor, tmp_path: Path) -> None:
    place = tmp_path / "prior"
    place.mkdir()

    def key(prior: object) -> str:
        given = auditor(priors={"diffusion": prior})
        with given.open_features(images) as session:
            return cell_key(Split("stem"), session, []).model_dump_json()

    before = key(str(place))
    assert key(str(place)) == before
    (place / "weights").write_text("1")
    after = key(str(place))
    assert after != before
    named, given = key("natural"), Diffusers(source="a/b")
    other = given.model_copy(update={"precision": "float16"})
    assert len({before, after, named, key("digits"), key(given), key(other)}) == 6


def test_ctrl_c_keeps_what_is_done(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FeatureSession.audit
    names: list[str] = []

    def audit(self: FeatureSession, attacks: Any) -> Any:
        names.append(self.split.name)
        if self.split.name == "narrow":
            raise KeyboardInterrupt
        return whole(self, attacks)

    monkeypatch.setattr(FeatureSession, "audit", audit)
    study = auditor().sweep(images, ["stem", "narrow", "act"], out=tmp_path)
    assert study.result.interrupted
    assert not study.result.complete
    assert [r.word for r in study.result.rows] == ["leaks", "not run", "not run"]
    assert names == ["stem", "narrow"]


def test_a_cut_that_cannot_be_audited_stops_no_other(images: Tensor) -> None:
    study = auditor().sweep(images, ["nowhere", "stem"])
    broken, stem = study.result.rows
    assert "nowhere" in broken.error
    assert broken.word == "not run"
    assert stem.word == "leaks"
    assert not study.result.complete


def test_no_cut_is_refused(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Auditor, "split_candidates", lambda *_: [])
    with pytest.raises(ConfigError, match="at least one cut"):
        auditor().sweep(images, [])


def test_cuts_are_spread_over_the_depth() -> None:
    found = [
        SplitCandidate(name=f"b.{i}", kind="Block", shape=[4], complete=i % 2 == 0)
        for i in range(40)
    ]
    chosen = [s.name for s in spread(found)]
    assert len(chosen) == MOST_CUTS
    assert chosen[0] == "b.0"
    assert chosen[-1] == "b.38"
    assert all(int(n[2:]) % 2 == 0 for n in chosen)
    assert spread([SplitCandidate(name="x", kind="K", note="windows")]) == []
    assert spread(found[:1]) == [Split("b.0")]


def result(*rows: SweepRow, **more: Any) -> SweepResult:
    fields: dict[str, Any] = {
        "privaudit": "0", "started": "2026-01-01T00:00:00+00:00", "model": "M",
        "images": 2, "image_bytes": 768, "total_flops": 1000, "ssim_limit": 0.5,
        "rows": list(rows),
    }  # fmt: skip
    return SweepResult(**(fields | more))


def row(name: str, word: str, ssim: float, flops: int, size: int = 100) -> SweepRow:
    split = {
        "name": name, "place": name, "shape": [size // 4], "bytes_per_image": size,
        "layout": "vector", "layout_source": "", "layout_certain": True,
        "prefix_tokens": 0, "grid": None, "client_flops": flops,
    }  # fmt: skip
    return SweepRow.model_validate(
        {"name": name, "word": word, "ssim_worst": ssim, "split": split}
    )


def test_the_answer_never_calls_an_open_question_safe() -> None:
    leaking = row("a", "leaks", 0.9, 10)
    unsure = row("b", "inconclusive", 0.2, 20)
    clear = row("c", "no leak found", 0.3, 500, 1536)
    assert sweep_page.answer(result(leaking)) == [
        "At every cut examined images could be rebuilt beyond the limit.",
        "The lowest worst SSIM, 0.9000, is at a. There the device sends 100 bytes for "
        "one image, 0.1 times the image itself, and does 1% of the model's operations.",
    ]
    (text,) = sweep_page.answer(result(leaking, unsure))
    assert "No cut was cleared" in text
    assert "treat it as not tested" in text
    first = sweep_page.answer(result(leaking, unsure, clear))[0]
    assert "no leak was found is c" in first
    assert "2.0 times the image itself, and does 50%" in first


def test_the_page_shows_leak_cost_and_pictures(images: Tensor, tmp_path: Path) -> None:
    study = auditor().sweep(images, CUTS)
    study.save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 3
    assert page.count("data:image/png") == 8
    assert "bar: features sent" in page
    assert 'not "safe"' in page or "not &#34;safe&#34;" in page
    stored = SweepResult.model_validate_json((tmp_path / "report.json").read_text())
    assert stored == study.result
    assert "| stem | leaks |" in (tmp_path / "report.md").read_text()


SOURCE = """
from tests.unit.test_split_audit import Small
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    from torchvision.utils import save_image

    (tmp_path / "model.py").write_text(SOURCE)
    folder = tmp_path / "images"
    folder.mkdir()
    for i, image in enumerate(shipped_images(2, (3, 16, 16))):
        save_image(image, folder / f"{i}.png")
    return tmp_path


def test_the_command_sweeps_and_goes_on(files: Path) -> None:
    command = Command(files)
    fixed = ("sweep", "--model", "model.py:Small", "--images", "images", "--out", "o",
             "--attacks", "rmle", "--budget", "20", "--cut", "stem")  # fmt: skip
    done = command(*fixed)
    assert done.code == 1, done.stderr
    assert "1 of 1 cuts leak | no leak found: nowhere | exit 1" in done.stdout
    assert (files / "o" / "report.html").exists()
    again = command(*fixed)
    assert "0 cuts were audited just now" in again.stderr


def test_the_command_trains_a_network_and_the_audit_takes_it(files: Path) -> None:
    command = Command(files)
    fixed = ("--model", "model.py:Small", "--split", "stem")
    done = command("inverse-network", "train", *fixed, "--public", "images", "--out",
                   "n.safetensors", "--iterations", "20", "--width", "16", "--layers",
                   "1", "--batch-size", "2")  # fmt: skip
    assert done.code == 0, done.stderr
    assert re.search(r"20 steps on 2 images; mean squared error \d", done.stderr)
    used = command("audit", *fixed, "--images", "images", "--out", "r",
                   "--attacks", "inverse_network", "--budget", "20",
                   "--inverse-network", "n.safetensors")  # fmt: skip
    assert used.code in (1, 3), used.stderr
    record = json.loads((files / "r" / "result.json").read_text())
    found = {a["evidence"]["label"]: a["evidence"]["state"] for a in record["attacks"]}
    assert found["inverse_network"] in ("plateau", "converged")
    other = command("audit", "--model", "model.py:Small", "--split", "narrow",
                    "--images", "images", "--out", "r2", "--attacks",
                    "inverse_network", "--budget", "20",
                    "--inverse-network", "n.safetensors")  # fmt: skip
    assert "failed" in json.dumps(
        json.loads((files / "r2" / "result.json").read_text())["attacks"]
    ), other.stderr


def test_a_layout_without_a_cut_is_refused(files: Path) -> None:
    command = Command(files)
    done = command("audit", "--model", "model.py:Small", "--images", "images",
                   "--out", "r", "--layout", "nchw")  # fmt: skip
    assert done.code == 2
    assert "--split" in done.stderr + done.stdout


def test_networks_are_safetensors(files: Path) -> None:
    done = Command(files)("inverse-network", "train", "--model", "model.py:Small",
                          "--split", "stem", "--public", "images",
                          "--out", "n.bin")  # fmt: skip
    assert done.code == 2
    assert ".safetensors" in done.stderr + done.stdout


def test_the_best_reconstruction_of_each_image_counts(images: Tensor) -> None:
    torch.manual_seed(0)
    study = auditor().sweep(images, ["stem"])
    (found,) = study.result.rows
    assert found.ssim_mean is not None
    assert found.ssim_worst is not None
    assert found.ssim_mean <= found.ssim_worst
