"""``reproduce dia``: ours beside the paper's, victim by victim, killed and resumed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from privaudit import _runner
from privaudit._controls import shipped_images
from privaudit.attacks.base import INTERRUPTED
from privaudit.errors import ConfigError
from privaudit.study import Store, dia_page, dia_unit, reproduce_dia
from privaudit.study.dia_models import build
from privaudit.study.dia_paper import MODELS, Case, Wanted, paper_rows
from privaudit.study.dia_result import DiaResult, WorstCase
from privaudit.study.dia_unit import KIND, Victims, victim
from privaudit.study.reproduce_dia import Reproduction, Task
from tests.unit.command import Command, environment

LENET = Wanted(models=("lenet",), datasets=("mnist",), rates=(0.5,))
"""Two lines: IG and DIA."""
CUT = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of the package in the place of the paper's victims."""
    folder = tmp_path_factory.mktemp("victims")
    for name, shape in (("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))):
        images = (shipped_images(8, shape) * 255).round().byte().permute(0, 2, 3, 1)
        labels = np.arange(8)
        np.savez(
            folder / f"dia_victims_{name}.npz", images=images.numpy(), labels=labels
        )
    return folder


def task(data: Path, wanted: Wanted = LENET, **changed: Any) -> Task:
    fields: dict[str, Any] = {"victims": 2, "iterations": CUT, **changed}
    return Task(wanted.rows(), data, **fields)


def stored(folder: Path) -> list[tuple[str, int]]:
    """(attack, victim) of every finished unit."""
    settings = [c.key.settings for c in Store(folder).cells(KIND)]
    return sorted((str(s["attack"]), int(str(s["victim"]))) for s in settings)


def timeless(worst: WorstCase | None) -> WorstCase | None:
    return worst and worst.model_copy(update={"seconds": 0.0})


def test_the_tables_are_the_papers() -> None:
    rows = paper_rows()
    assert Counter(r.table for r in rows) == {3: 24, 4: 14, 5: 16, 6: 12, 7: 48, 8: 64,
                                              9: 31}  # fmt: skip
    (found,) = Wanted(tables=(6,), models=("mlp",), datasets=("mnist",),
                      rates=(0.75,)).rows()  # fmt: skip
    assert found.mean == {"ssim": 0.82, "psnr": 19.53, "mse": 0.13}
    assert found.std["ssim"] == 0.09
    assert found.attack_settings() == ("well_informed", {})


@pytest.mark.parametrize("model", sorted(MODELS.values()))
@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_models_have_as_many_unknowns_as_the_papers(
    data: Path, model: str, dataset: str
) -> None:
    """Pixels and mask entries of one victim: the paper's column "parameters"."""
    case = Case(dataset=dataset, model=model, p=0.25, batch=1)
    one = victim(Victims.load(data, dataset), case, 0)
    masks = [d.value for d in one.client.step.tape if d.value is not None]
    unknowns = one.client.batch.images.numel() + sum(m.numel() for m in masks)
    paper = {r.parameters for r in paper_rows() if r.case == case and r.attack == "DIA"}
    assert paper == {unknowns}


def test_resnet_drops_once_and_keeps_its_statistics(data: Path) -> None:
    model = build("resnet18", 0.5, channels=3, size=32)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(m.training for m in norms)
    case = Case(dataset="cifar10", model="resnet18", p=0.5, batch=1)
    one = victim(Victims.load(data, "cifar10"), case, 0)
    assert [d.p for d in one.client.step.tape] == [0.5]
    for module in one.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert not module.training
            assert module.num_batches_tracked == 0


def test_a_victim_is_the_same_each_time_and_the_world_is_left_alone(data: Path) -> None:
    victims = Victims.load(data, "mnist")
    case = Case(dataset="mnist", model="mlp", p=0.5, batch=2)
    before = torch.get_rng_state()
    one, same, other = (victim(victims, case, n) for n in (1, 1, 0))
    assert torch.equal(torch.get_rng_state(), before)
    attack = LENET.rows()[0].build()
    assert attack is not None
    assert one.key(attack, CUT) == same.key(attack, CUT)
    assert len({k.digest for k in (one.key(attack, CUT), one.key(attack, None),
                                   other.key(attack, CUT))}) == 3  # fmt: skip
    assert torch.equal(one.client.batch.images, victims.images[2:4])


SETTINGS = {
    ("table 3", "analytical"): {"initialisation": "analytical", "hold_certain": False,
                                "mask_weight": 1e-4},
    ("table 3", "normal_1-p"): {"initialisation": "normal_keep", "mask_weight": 1e-4},
    ("table 3", "normal_0.5"): {"initialisation": "normal_half", "mask_weight": 1e-4},
    ("table 4", "DIA-APRIL"): {"initialisation": "bernoulli", "mask_weight": 1e-4,
                               "base": "april"},
    ("table 7", "DIA"): {"initialisation": "bernoulli", "mask_weight": 0.0},
    ("table 9", "DIA"): {"initialisation": "bernoulli", "mask_weight": 1e-4},
}  # fmt: skip


@pytest.mark.parametrize("which", SETTINGS)
def test_each_line_is_run_as_the_paper_sets_it(which: tuple[str, str]) -> None:
    table, word = int(which[0][-1]), which[1]
    rows = [
        r for r in paper_rows() if r.table == table and word in (r.attack, r.mask_init)
    ]
    assert {r.attack_settings()[0] for r in rows} == {"dropout_inversion"}
    assert all(r.attack_settings()[1] == SETTINGS[which] for r in rows)


def test_ours_stand_beside_the_papers(data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    made = Reproduction(task(data), Store(tmp_path), said.append)
    result = made.run()
    assert result.complete
    ig, dia = result.rows
    assert (ig.paper.attack, dia.paper.attack) == ("IG", "DIA")
    assert ig.iterations == (CUT, CUT)
    assert ig.ours["ssim"].count == 2
    for metric in ("ssim", "psnr", "mse"):
        like = "ssim_range_2" if metric == "ssim" else metric
        ours, paper = dia.ours[like].mean, dia.paper.mean[metric]
        assert dia.difference[metric] == pytest.approx(ours - paper)
    assert set(dia.ours) >= {"mmd", "trd"}
    assert "mmd" not in ig.ours, "IG knows of no masks"
    assert dia.worst is not None
    assert (
        dia.worst.ssim.mean >= max(ig.ours["ssim"].mean, dia.ours["ssim"].mean) - 1e-9
    )
    assert dia.seconds > 0
    assert dia.cpu_seconds > 0
    text = dia_page.markdown(result)
    assert f"cut at {CUT} iterations" in text
    assert f"{dia.difference['ssim']:+.3f}".replace("-", "−") in text
    page = dia_page.page(result, made)
    assert page.count("<img") >= 6
    assert f"cut at {CUT} iterations" in page


def test_where_a_closed_form_is_exact_it_is_the_worst_case(
    data: Path, tmp_path: Path
) -> None:
    wanted = Wanted(tables=(6,), models=("mlp",), datasets=("mnist",), rates=(0.5,))
    result = Reproduction(task(data, wanted), Store(tmp_path)).run()
    (row,) = result.rows
    assert row.worst is not None
    assert row.worst.attacks == {"closed_form": 2}, "WIIG is a diagnostic"
    assert row.worst.ssim.mean > 0.999
    assert row.ours["ssim"].mean < 0.9


def test_what_was_not_run_is_never_a_number(data: Path, tmp_path: Path) -> None:
    imagenet = [r for r in paper_rows() if r.case.dataset == "imagenet"]
    rows = [*LENET.rows(), imagenet[0]]
    made = Reproduction(Task(rows, data, 2, CUT), Store(tmp_path))
    result = made.look()
    assert made.computed == 0
    assert stored(tmp_path) == []
    assert not result.complete
    assert [r.note for r in result.rows[:2]] == ["not run", "not run"]
    assert "needs images of imagenet" in result.rows[2].note
    for row in result.rows:
        assert not row.ours
        assert not row.difference
    lines = [
        n for n in dia_page.markdown(result).splitlines() if n.startswith("| lenet")
    ]
    assert len(lines) == 6
    assert all("not run" in line for line in lines)
    assert json.loads(result.model_dump_json())["rows"][0]["ours"] == {}


def test_finished_victims_are_not_attacked_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Reproduction(task(data), Store(tmp_path))
    one = first.run()
    assert first.computed == 12, "2 victims: 2 lines, 4 rungs"
    again = Reproduction(task(data), Store(tmp_path))
    two = again.run()
    assert again.computed == 0
    assert two.rows == one.rows
    more = Reproduction(task(data, victims=3), Store(tmp_path))
    more.run()
    assert more.computed == 6
    other = Reproduction(task(data, iterations=CUT + 1), Store(tmp_path))
    other.run()
    assert other.computed == 12, "another schedule is another computation"


def test_the_worst_case_waits_for_the_whole_ladder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = dia_unit.attack_victim, []

    def attack(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(reproduce_dia, "attack_victim", attack)
    result = Reproduction(task(data), Store(tmp_path)).run()
    assert result.interrupted
    assert not result.complete
    assert [r.done for r in result.rows] == [1, 1]
    assert [r.note for r in result.rows] == ["1 of 2 victims"] * 2
    assert all(r.worst is None for r in result.rows)
    assert "interrupted" in dia_page.markdown(result)


def test_the_worst_case_alone_leaves_the_lines_attacks_out(
    data: Path, tmp_path: Path
) -> None:
    wanted = Wanted(tables=(5,), models=("mlp",), datasets=("mnist",), rates=(0.5,))
    made = Reproduction(task(data, wanted, lines=False), Store(tmp_path))
    result = made.run()
    assert {name for name, _ in stored(tmp_path)} == {"closed_form"}
    (row,) = result.rows
    assert row.note == "not run"
    assert row.worst is not None
    assert row.worst.victims == 2
    assert row.worst.seconds > 0
    assert row.worst.ssim_range_2 is not None
    assert result.complete
    assert result.units == (2, 2)


def test_ctrl_c_inside_a_search_leaves_no_unit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that Ctrl-C ended returns what it has: that is no finished unit."""
    real = _runner.run

    def run(*arguments: Any, **named: Any) -> Any:
        ran = real(*arguments, **named)
        (outcome,) = ran.outcomes
        return replace(
            ran,
            outcomes=[replace(outcome, state="stopped", reason=INTERRUPTED)],
        )

    monkeypatch.setattr(dia_unit, "run", run)
    result = Reproduction(task(data), Store(tmp_path)).run()
    assert result.interrupted
    assert stored(tmp_path) == []


def test_what_broke_is_reported_and_tried_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dia_unit.attack_victim

    def attack(*arguments: Any) -> Any:
        values, arrays = real(*arguments)
        return {
            **values,
            "state": "failed",
            "reason": "MemoryError",
            "ssim": [],
        }, arrays

    with monkeypatch.context() as patch:
        patch.setattr(reproduce_dia, "attack_victim", attack)
        result = Reproduction(task(data, ladder=False), Store(tmp_path)).run()
    assert not result.complete
    assert result.rows[0].states == {"failed": 2}
    assert stored(tmp_path) == []
    assert Reproduction(task(data, ladder=False), Store(tmp_path)).run().complete


@pytest.mark.slow
def test_killed_ten_times_it_ends_as_if_it_never_was(
    data: Path, tmp_path: Path
) -> None:
    """Each unit is computed once, whatever the moment of the kill."""
    start = [sys.executable, "-m", "privaudit", "reproduce", "dia", "--data", str(data)]
    ask = [
        "--model",
        "lenet",
        "--dataset",
        "mnist",
        "--p",
        ".5",
        "--victims",
        "4",
        "--iterations",
        "40",
    ]
    command = [*start, "--out", str(tmp_path / "killed"), *ask]
    counts: list[int] = []
    for _ in range(10):
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=environment(),
        ) as process:  # fmt: skip
            assert process.stderr is not None
            if len(counts) < 8:
                process.stderr.readline()  # one unit is finished
            time.sleep(0.03 * len(counts))
            process.send_signal(signal.SIGKILL)
        before = len(stored(tmp_path / "killed"))
        counts.append(before)
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert f"{20 - counts[-1]} attacks were run just now" in done.stderr
    # A process of its own as well: how many threads a process starts with can round
    # a sum otherwise, and forty steps by the sign make more of it.
    command[command.index(str(tmp_path / "killed"))] = str(tmp_path / "whole")
    subprocess.run(command, capture_output=True, check=True, env=environment())
    killed, straight = (
        DiaResult.model_validate_json((tmp_path / name / "report.json").read_text())
        for name in ("killed", "whole")
    )
    for one, other in zip(killed.rows, straight.rows, strict=True):
        assert one.ours == other.ours
        assert timeless(one.worst) == timeless(other.worst)
    assert stored(tmp_path / "killed") == stored(tmp_path / "whole")


def test_the_command_lists_runs_and_merges(data: Path, tmp_path: Path) -> None:
    running = Command(tmp_path)
    fixed = ("reproduce", "dia", "--data", data, "--model", "lenet", "--dataset",
             "mnist", "--p", ".5", "--iterations", str(CUT), "--victims")  # fmt: skip
    listed = running(*fixed, "2", "--out", "a", "--dry-run")
    assert listed.code == 0, listed.stderr
    assert "table 9: lenet, mnist, p = 0.5, batch 1, IG: 2 to run" in listed.stdout
    assert not (tmp_path / "a" / "report.html").exists()
    done = running(*fixed, "2", "--out", "a")
    assert done.code == 0, done.stderr
    assert done.line == "privaudit: reproduce dia | attacks on victims: 4 of 4 | exit 0"
    for name in ("report.json", "report.md", "report.html"):
        assert (tmp_path / "a" / name).stat().st_size > 1000
    merged = running(*fixed, "2", "--out", "b", "--merge", "a")
    assert "12 cells taken over" in merged.stderr
    assert "0 attacks were run just now" in merged.stderr


REFUSED = {
    "model": (("--model", "vgg"), "one of .*lenet"),
    "table": (("--table", "2"), "one of 3, 4"),
    "combination": (("--table", "6", "--model", "lenet"), "a combination"),
    "data": (("--data", "nowhere"), "images .N, H, W, C. uint8"),
    "merge": (("--merge", "nowhere"), "reproduce has written"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_paper_does_not_have_is_refused(
    data: Path, tmp_path: Path, name: str
) -> None:
    options, message = REFUSED[name]
    done = Command(tmp_path)("reproduce", "dia", "--data", data, "--out", "out",
                             *options)  # fmt: skip
    assert done.code == 2
    assert re.search(message, done.stderr), done.stderr


def test_a_file_that_holds_no_victims_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "dia_victims_mnist.npz", images=np.zeros((2, 3)), labels=[0, 1])
    with pytest.raises(ConfigError, match=r"images torch\.float64"):
        Victims.load(tmp_path, "mnist").count(1)
