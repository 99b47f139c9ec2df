"""``reproduce drag``: ours beside the paper's, image by image, killed and resumed."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from privaudit._controls import shipped_images
from privaudit._pixels import to_png
from privaudit._weights import Found
from privaudit.attacks import Drag, DragPp, Glass, Lm, Rmle
from privaudit.attacks.base import INTERRUPTED
from privaudit.errors import ConfigError
from privaudit.metrics import Lpips
from privaudit.session import feature_runner
from privaudit.study import Store, drag_clients, drag_page, drag_unit
from privaudit.study.drag_handed import Handed, folder_digest
from privaudit.study.drag_images import pictures
from privaudit.study.drag_paper import PaperRow, Wanted, paper_rows
from privaudit.study.drag_result import DragResult
from privaudit.study.drag_unit import KIND
from privaudit.study.reproduce_drag import Reproduction, Task
from tests.unit.command import ROOT, Command, environment
from tests.unit.drag_stand_ins import VIT, inverse_network, stand_in

DEEP = Wanted(models=("clip-vit-b-16",), splits=("layer-12",), tables=("1", "2", "3"))
SHALLOW = Wanted(
    models=("clip-rn50",), splits=("block-1",), attacks=("rmle",), tables=("1",)
)
CUT = 3
TARGETS = Path(
    os.environ.get("PRIVAUDIT_SHARED", ROOT.parent / "shared"), "targets/drag.csv"
)


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stand_in(drag_clients.client_model)
    monkeypatch.setattr(drag_clients, "client_model", found)
    monkeypatch.delenv("PRIVAUDIT_WEIGHTS", raising=False)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of the package, two of which count as the paper's faces."""
    folder = tmp_path_factory.mktemp("images")
    for index, image in enumerate(shipped_images(5, (3, 24, 20))):
        place = folder / ("ffhq" if index < 2 else "coco")
        place.mkdir(exist_ok=True)
        (place / f"{index}.png").write_bytes(to_png(image))
    return folder


@pytest.fixture(scope="module")
def inverse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inverse")
    inverse_network(folder)
    return folder


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("gan") / "own_generator.py"
    file.write_text("from tests.unit.test_glass import toy\n")
    return f"{file}:toy"


@pytest.fixture
def handed(
    latent_prior: Path, pixel_prior: Path, inverse: Path, factory: str
) -> Handed:
    return Handed(
        source=str(latent_prior), bedroom=str(pixel_prior), gan=factory,
        inverse_networks=inverse,
    )  # fmt: skip


def task(images: Path, wanted: Wanted = SHALLOW, **changed: Any) -> Task:
    fields: dict[str, Any] = {"count": 2, "iterations": CUT, **changed}
    return Task(wanted.rows(), images, **fields)


def stored(folder: Path) -> list[tuple[str, str]]:
    """(attack, image) of every finished unit."""
    keys = [c.key for c in Store(folder).cells(KIND)]
    return sorted((str(k.settings["attack"]), k.data) for k in keys)


def test_the_tables_are_the_papers() -> None:
    rows = paper_rows()
    assert Counter(r.table for r in rows) == {
        "1": 60, "2": 15, "3": 20, "5": 12, "6": 14, "7": 72, "8": 15, "f4": 10,
    }  # fmt: skip
    seven = {(r.model, r.defense, r.attack): r.mean for r in rows if r.table == "7"}
    for row in rows:
        if row.table == "5":
            assert seven[row.model, row.defense, row.attack] == row.mean
    (found,) = Wanted(tables=("8",), models=("clip-rn50",), attacks=("lm",)).rows()
    assert found.seconds == 22 * 60 + 27
    (plain,) = [r for r in rows if r.accuracy == 79.87]
    assert (plain.model, plain.defense) == (VIT, "none")


@pytest.mark.skipif(not TARGETS.is_file(), reason="the tables are not in ../shared")
def test_every_number_is_that_of_the_tables() -> None:
    ours = {
        (r.table, r.model, r.split, r.defense, r.attack.partition(" (")[0]): r.mean
        for r in paper_rows()
        if r.table in ("1", "2", "3", "7")
    }
    with TARGETS.open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(ours)
    for line in lines:
        table, model, split = line["table"], line["model"], line["split"]
        key = (table, model, split, line["defense"], line["attack"].partition("(")[0])
        assert ours[key] == {n: float(line[n]) for n in ("ms_ssim", "lpips", "dino")}


def test_attacks_are_set_as_the_paper_sets_them() -> None:
    built = {r.name: r.build() for r in paper_rows() if r.name and not r.missing}
    rmle, lm, glass = built["rmle"], built["lm"], built["glass"]
    assert isinstance(rmle, Rmle)
    assert isinstance(lm, Lm)
    assert isinstance(glass, Glass)
    assert (rmle.learning_rate, rmle.tv_weight, rmle.tv_weight_end) == (0.05, 1.5, 1.5)
    assert (rmle.patch_weight, rmle.cool, rmle.distance) == (0.001, 0, None)
    assert (lm.learning_rate, lm.tv_weight, lm.patch_weight) == (0.01, 0.05, 0.001)
    assert (glass.learning_rate, glass.kl_weight, glass.tv_weight) == (0.01, 1.0, 0)
    assert not rmle.opponent
    assert not lm.opponent
    assert {a.iterations for a in (rmle, lm, glass)} == {20_000}
    drag, after = built["drag"], built["drag_pp"]
    assert isinstance(drag, Drag)
    assert isinstance(after, DragPp)
    assert after.strength == 0.3
    assert after.drag == drag
    assert built["drag_bedroom"] == drag
    for value, wanted in (
        (drag.steps, 250), (drag.rounds, 16), (drag.weight, 0.2), (drag.eta, 1.0),
        (drag.clip_norm, 0.02), (drag.l2_weight, 0.01), (drag.strength, 1.0),
    ):  # fmt: skip
        assert value == wanted


def test_every_attack_stands_beside_the_papers(
    images: Path, handed: Handed, tmp_path: Path
) -> None:
    made = Reproduction(task(images, DEEP, handed=handed), Store(tmp_path))
    result = made.run()
    assert result.complete, drag_page.markdown(result)
    assert result.images == ["coco/2.png", "ffhq/0.png"]
    for row in result.rows:
        assert row.done == 2
        ours, paper = row.ours["ms_ssim"], row.paper.mean["ms_ssim"]
        assert ours.count == 2
        assert row.difference["ms_ssim"] == pytest.approx(ours.mean - paper)
        assert "dino" not in row.difference
    by_attack = {r.paper.attack: r for r in result.rows}
    assert by_attack["rMLE"].iterations == (CUT, CUT)
    assert by_attack["IN"].ours["ssim"].mean != by_attack["DRAG"].ours["ssim"].mean
    tables = Counter(r.paper.table for r in result.rows)
    assert tables == {"1": 4, "2": 3, "3": 4}
    assert made.computed == 2 * 7, "what tables share is run once"
    text, page = drag_page.markdown(result), drag_page.page(result, made)
    assert f"cut at {CUT} iterations" in text
    assert "paper's, not comparable" in text
    assert "(0.652)" in text
    assert "lpips is not available" in text
    shown = f"{by_attack['rMLE'].difference['ms_ssim']:+.3f}".replace("-", "−")
    assert shown in text
    assert page.count("<img") >= 2 * 8
    assert json.loads(result.model_dump_json())["rows"][0]["ours"]["ms_ssim"]


def test_what_was_not_run_is_listed_and_never_a_number(
    images: Path, tmp_path: Path
) -> None:
    rows = [r for r in paper_rows() if r.model != "CLIP-RN50"]
    rows = [r for r in rows if r.split in ("", "Layer 12") and r.attack != "LM"]
    made = Reproduction(
        replace(task(images), rows=rows, handed=Handed(source="nobody/nothing")),
        Store(tmp_path),
    )
    result = made.run()
    assert len(result.rows) == len(rows)
    ran = {r.paper.attack for r in result.rows if r.done}
    assert ran == {"rMLE"}
    notes = {(r.paper.table, r.paper.model, r.paper.defense, r.paper.attack): r.note
             for r in result.rows}  # fmt: skip
    assert (
        "not run: the defense Config-III w/ adaptive (DISCO"
        in (notes["5", VIT, "Config-III w/ adaptive", "DRAG"])
    )
    assert "NoPeek" in notes["7", "DINOv2-Base", "Config-VI", "rMLE"]
    assert "classification heads" in notes["6", VIT, "none", ""]
    assert "weights of DINOv2-Base" in notes["1", "DINOv2-Base", "none", "rMLE"]
    assert "prior 'nobody/nothing'" in notes["1", VIT, "none", "DRAG"]
    assert "--gan: none" in notes["1", VIT, "none", "GLASS"]
    assert "--inverse-networks: none" in notes["2", VIT, "none", "IN"]
    assert "--bedroom-source: none" in notes["3", VIT, "none", "DRAG (LSUN bedroom)"]
    assert "--aerial-images: none" in notes["f4", VIT, "none", "DRAG++"]
    for row in result.rows:
        if not row.done:
            assert row.note.startswith("not run: ")
            assert not row.ours
            assert not row.difference
    text = drag_page.markdown(result)
    for command in (
        "curl -L https://huggingface.co/facebook/dinov2-base/resolve/main/model",
        "-o FOLDER/dinov2-base.safetensors",
        "hf download nobody/nothing",
        "hf download google/ddpm-ema-bedroom-256",
        "privaudit inverse-network train --model "
        "privaudit.study.drag_clients:clip_vit_b_16",
        "--gan path.py:factory",
    ):
        assert command in text
    assert text == drag_page.markdown(result)
    assert "cannot be run here" in drag_page.page(result, made)


def test_finished_images_are_not_attacked_again(images: Path, tmp_path: Path) -> None:
    first = Reproduction(task(images), Store(tmp_path))
    one = first.run()
    assert first.computed == 2
    again = Reproduction(task(images), Store(tmp_path))
    assert again.run().rows == one.rows
    assert again.computed == 0
    more = Reproduction(task(images, count=3), Store(tmp_path))
    more.run()
    assert more.computed == 1
    other = Reproduction(task(images, iterations=CUT + 1), Store(tmp_path))
    other.run()
    assert other.computed == 2, "another schedule is another computation"


def test_another_prior_is_another_computation(
    images: Path, handed: Handed, pixel_prior: Path, tmp_path: Path
) -> None:
    wanted = Wanted(models=("clip-rn50",), splits=("block-1",), attacks=("drag",),
                    tables=("1",))  # fmt: skip
    one = task(images, wanted, handed=handed, count=1)
    made = Reproduction(one, Store(tmp_path))
    made.run()
    assert made.missing(one.rows[0])[0] == 0
    other = replace(one, handed=replace(handed, source=str(pixel_prior)))
    assert Reproduction(other, Store(tmp_path)).missing(one.rows[0])[0] == 1
    assert folder_digest(Path(handed.source)) != folder_digest(pixel_prior)
    assert folder_digest(pixel_prior) != folder_digest(pixel_prior, "float16")


def test_what_one_image_gets_does_not_depend_on_the_others(
    images: Path, tmp_path: Path
) -> None:
    alone, both = (
        Reproduction(task(images, count=n), Store(tmp_path / str(n))) for n in (1, 2)
    )
    (one,), (two,) = alone.run().rows, both.run().rows
    (first,) = alone.cells(one.paper).values()
    found = both.cells(two.paper)["coco/2.png"].arrays()["reconstruction"]
    assert abs(first.arrays()["reconstruction"] - found).mean() < 1e-3


def test_scores_are_made_when_their_weights_come(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Reproduction(task(images), Store(tmp_path)).run()
    assert "lpips" in before.metrics_off
    assert "lpips" not in before.rows[0].ours

    def flat(self: Lpips, truth: torch.Tensor, guess: torch.Tensor) -> torch.Tensor:
        return (truth - guess).abs().flatten(1).mean(1)

    monkeypatch.setattr(Lpips, "measure", flat)
    for name in ("unavailable", "undefined"):
        monkeypatch.setattr(Lpips, name, lambda *_: "")
    made = Reproduction(task(images), Store(tmp_path))
    after = made.run()
    assert made.computed == 0
    assert after.rows[0].ours["lpips"].count == 2
    assert "lpips" in after.rows[0].difference


def test_ctrl_c_keeps_what_is_finished(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = feature_runner.run_features, []

    def run(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        ran = real(*arguments, **named)
        if len(calls) < 2:
            return ran
        ended = [replace(o, state="stopped", reason=INTERRUPTED) for o in ran.outcomes]
        return replace(ran, outcomes=ended)

    wanted = Wanted(models=("clip-rn50",), attacks=("rmle",), tables=("1",))
    with monkeypatch.context() as patch:
        patch.setattr(drag_unit, "run_features", run)
        result = Reproduction(task(images, wanted), Store(tmp_path)).run()
    assert result.interrupted
    assert not result.complete
    assert [r.done for r in result.rows] == [2, 0, 0, 0, 0]
    assert "the run was interrupted" in drag_page.markdown(result)
    rest = Reproduction(task(images, wanted), Store(tmp_path))
    assert rest.run().complete
    assert rest.computed == 8


def test_what_broke_is_reported_and_tried_again(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no such luck")

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Rmle, "run", broken)
        result = Reproduction(task(images), Store(tmp_path), said.append).run()
    assert not result.complete
    assert result.rows[0].states == {"failed": 2}
    assert not result.rows[0].difference
    assert "no such luck" in said[0]
    assert stored(tmp_path) == []
    assert Reproduction(task(images), Store(tmp_path)).run().complete


def test_faces_have_a_generator_of_their_own(
    images: Path, factory: str, tmp_path: Path
) -> None:
    wanted = Wanted(models=("clip-rn50",), attacks=("glass",), tables=("8",))
    for given, done in (
        (Handed(gan_faces=factory), [1, 0]), (Handed(gan=factory), [1, 1]),
    ):  # fmt: skip
        made = Reproduction(task(images, wanted, handed=given), Store(tmp_path))
        result = made.run()
        assert [r.done for r in result.rows] == done
    faces, others = result.rows
    assert "FFHQ" in faces.paper.attack
    assert list(made.cells(faces.paper)) == ["ffhq/0.png"]
    assert list(made.cells(others.paper)) == ["coco/2.png"]
    assert faces.difference["seconds"] == pytest.approx(
        faces.ours["seconds"].mean - 19 * 60 - 45
    )
    assert "RTX A6000" in drag_page.markdown(result)


def test_aerial_images_are_other_images(
    images: Path, handed: Handed, tmp_path: Path
) -> None:
    wanted = Wanted(tables=("f4",), splits=("layer-12",), attacks=("drag",))
    aerial = task(images / "coco", wanted, handed=handed, aerial=images / "ffhq")
    result = Reproduction(aerial, Store(tmp_path)).run()
    assert [r.done for r in result.rows] == [2]
    assert result.images == ["0.png", "1.png"]


def test_an_inverse_network_of_another_cut_is_refused(
    images: Path, inverse: Path, tmp_path: Path
) -> None:
    name = "clip-vit-b-16.layer-3.safetensors"
    (tmp_path / name).write_bytes(
        (inverse / "clip-vit-b-16.layer-12.safetensors").read_bytes()
    )
    wanted = Wanted(tables=("2",), splits=("layer-3",), attacks=("in_network",))
    handed = Handed(inverse_networks=tmp_path)
    (row,) = (
        Reproduction(task(images, wanted, handed=handed), Store(tmp_path)).run().rows
    )
    assert row.note.startswith("not run: ")
    assert name in row.note


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no image in"):
        pictures(tmp_path, 2, 16)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"images that can be read.*broken\.png"):
        pictures(tmp_path, 2, 16)


def test_no_weight_stays_random(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    wanted = {n: torch.rand(v.shape) for n, v in network.state_dict().items()}
    wanted.pop("1.num_batches_tracked")
    file = tmp_path / "w.safetensors"
    for prefix in ("", "visual."):
        save_file({prefix + n: v for n, v in wanted.items()}, file)
        state = {prefix + n: v for n, v in wanted.items()}
        drag_clients._fill(network, state, Found.at(file))
        for name, value in wanted.items():
            assert torch.equal(network.state_dict()[name], value)
    wanted.pop("0.bias")
    with pytest.raises(ConfigError, match=r"all 6 tensors.*1 missing.*0\.bias"):
        drag_clients._fill(network, wanted, Found.at(file))


def test_clients_are_cut_where_the_paper_cuts_them() -> None:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        hidden_size=12, num_hidden_layers=12, num_attention_heads=2, image_size=28,
        patch_size=14,
    )  # fmt: skip
    with torch.random.fork_rng():
        found = drag_clients.as_client(Dinov2Model(config), "DINOv2-Base")
    wanted = {r.split for r in paper_rows() if r.model == "DINOv2-Base" and r.split}
    assert set(found.points) == wanted
    with pytest.raises(ConfigError, match="known split points"):
        drag_clients.as_client(nn.Linear(2, 2), "DINOv2-Base")


@pytest.mark.slow
def test_the_published_models_have_the_cuts_that_messages_name() -> None:
    with torch.random.fork_rng():
        built = {
            "CLIP-ViT-B/16": drag_clients._clip("ViT-B-16-quickgelu"),
            "CLIP-RN50": drag_clients._clip("RN50-quickgelu"),
            "DINOv2-Base": drag_clients._dinov2(),
        }
    for name, module in built.items():
        found = drag_clients.as_client(module, name)
        wanted = {k.capitalize(): v for k, v in drag_clients.CUTS[name].items()}
        assert found.points == wanted
        mean = ",".join(map(str, found.normalisation.mean or ()))
        command = drag_clients.training(name, next(iter(wanted)), "x.safetensors")
        assert f"--mean {mean} --std" in command
        factory = getattr(drag_clients, command.split(":")[1].split()[0])
        assert callable(factory)


@pytest.mark.slow
def test_killed_again_and_again_it_ends_as_if_it_never_was(
    images: Path, tmp_path: Path
) -> None:
    """Each unit is computed once, whatever the moment of the kill."""
    ask = ["reproduce", "drag", "--images", str(images), "--model", "clip-rn50",
           "--table", "1", "--attack", "rmle", "--images-count", "3",
           "--iterations", "60"]  # fmt: skip
    start = [sys.executable, "-m", "tests.unit.drag_stand_ins", *ask, "--out"]
    counts: list[int] = []
    for number in range(4):
        with subprocess.Popen(
            [*start, str(tmp_path / "killed")], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT,
        ) as process:  # fmt: skip
            assert process.stderr is not None
            process.stderr.readline()  # one unit is finished
            time.sleep(0.05 * number)
            process.send_signal(signal.SIGKILL)
        counts.append(len(stored(tmp_path / "killed")))
    assert counts == sorted(counts)
    assert 0 < counts[0] < 15
    for name in ("killed", "whole"):
        done = subprocess.run(
            [*start, str(tmp_path / name)], capture_output=True, text=True,
            env=environment(), cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        left = 15 - counts[-1] if name == "killed" else 15
        assert f"{left} attacks were run just now" in done.stderr
    killed, straight = (
        DragResult.model_validate_json((tmp_path / name / "report.json").read_text())
        for name in ("killed", "whole")
    )
    for one, other in zip(killed.rows, straight.rows, strict=True):
        for metric in ("ms_ssim", "ssim"):
            assert one.ours[metric].mean == pytest.approx(
                other.ours[metric].mean, abs=1e-3
            )
    assert stored(tmp_path / "killed") == stored(tmp_path / "whole")


def test_the_command_says_what_is_missing(images: Path, tmp_path: Path) -> None:
    running = Command(tmp_path)
    fixed = ("reproduce", "drag", "--images", images, "--out", "out")
    listed = running(*fixed, "--table", "1", "--model", "dinov2-base", "--dry-run")
    assert listed.code == 0, listed.stderr
    name = "table 1, DINOv2-Base, Layer 12, DRAG: not run: weights of DINOv2-Base"
    assert name in listed.stdout
    assert "missing: weights of DINOv2-Base" in listed.stdout
    assert not (tmp_path / "out" / "report.html").exists()
    done = running(*fixed, "--table", "6")
    assert done.code == 0, done.stderr
    assert done.line == "privaudit: reproduce drag | attacks on images: 0 of 0 | exit 0"
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| CLIP-ViT-B/16 | none | not run | 79.87 % |" in text
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000


REFUSED = {
    "model": (("--model", "vgg"), "one of .*clip-rn50"),
    "table": (("--table", "4"), "one of 1, 2"),
    "split": (("--split", "layer-1"), "one of block-1"),
    "attack": (("--attack", "dlg"), "one of drag"),
    "combination": (("--table", "2", "--model", "clip-rn50"), "a combination"),
    "precision": (("--precision", "int8"), "float32, float16 or bfloat16"),
    "device": (("--device", "toaster"), "a device that torch can use"),
    "merge": (("--merge", "nowhere"), "reproduce has written"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_paper_does_not_have_is_refused(
    images: Path, tmp_path: Path, name: str
) -> None:
    options, message = REFUSED[name]
    done = Command(tmp_path)("reproduce", "drag", "--images", images, "--out", "out",
                             *options)  # fmt: skip
    assert done.code == 2
    assert re.search(message, done.stderr), done.stderr


def test_lines_are_named_for_readers() -> None:
    row = PaperRow(table="7", model=VIT, split="Layer 12", defense="Config-I",
                   attack="LM", mean={})  # fmt: skip
    assert row.place == "CLIP-ViT-B/16, Layer 12, Config-I"
