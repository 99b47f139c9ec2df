"""privaudit compare: one file, one table; interrupted or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privaudit._samples import load
from tests.unit.command import Command

MODEL = """
import torch
from torch import nn

IMAGES = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 24, 4, 4)
        self.head = nn.Linear(24 * 16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.first(x)).flatten(1))


def build():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def share(model):
    with torch.no_grad():
        return float((model(IMAGES).argmax(1) == 0).float().mean())


def batches():
    return [(IMAGES, torch.arange(8) % 4)]
"""
FILE = """
model = "net.py:build"
images = ["private"]
size = "16"
split = "first"
attacks = ["linear_inverse"]
utility = "net.py:share"
train_data = "net.py:batches"
iterations = 20

[[defense]]
name = "none"

[[defense]]
name = "quantisation"
settings = {bits = 6}

[[defense]]
chain = [{name = "random_zeroing", settings = {ratio = 0.1}}, {name = "gaussian_noise"}]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "private").mkdir()
    for index, picture in enumerate(load(2, (16, 16))):
        picture.save(tmp_path / "private" / f"{index}.png")
    (tmp_path / "comparison.toml").write_text(FILE)
    return tmp_path


def test_the_same_file_gives_the_same_table(place: Path) -> None:
    command = Command(place)
    first = command("compare", "comparison.toml", "--out", "out")
    assert first.code in (1, 3), first.stderr
    assert first.stdout.startswith("privaudit: compare | ")
    assert "14 parts were measured just now" in first.stderr
    table = json.loads((place / "out" / "report.json").read_text())["rows"]
    labels = [r["label"] for r in table]
    assert labels == [
        "none", "quantisation(bits=6)", "random_zeroing(ratio=0.1), gaussian_noise",
    ]  # fmt: skip
    assert all(not r["error"] for r in table), table
    assert all(r["utility"] is not None for r in table)
    again = command("compare", "comparison.toml", "--out", "out")
    assert again.stdout == first.stdout
    assert "0 parts were measured just now" in again.stderr
    assert json.loads((place / "out" / "report.json").read_text())["rows"] == table


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        ("images =", "pictures =", "pictures"),
        ('"none"', '"shufle"', "shufle"),
        ("{bits = 6}", "{bits = 0}", "bits"),
        ("{bits = 6}", "{bit = 6}", "bit"),
        ('name = "none"', "", "neither"),
        ('"net.py:share"', '"net.py:gone"', "gone"),
        ("size =", "size ", "no TOML"),
        ('split = "first"', 'split = "second"', "second"),
    ],
)
def test_bad_files_say_where(
    place: Path, written: str, instead: str, said: str
) -> None:
    file = place / "comparison.toml"
    file.write_text(FILE.replace(written, instead, 1))
    done = Command(place)("compare", "comparison.toml", "--out", "out")
    assert done.code == 2, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = Command(tmp_path)("compare", "nothing.toml", "--out", "out")
    assert done.code == 2
    assert "nothing.toml" in done.stderr


def test_an_audit_behind_defenses(place: Path) -> None:
    command = Command(place)
    common = ["--model", "net.py:build", "--images", "private", "--size", "16"]
    common += ["--split", "first", "--attacks", "linear_inverse", "--budget", "60"]
    done = command(
        "audit", *common, "--defense", "random_zeroing:ratio=0.1",
        "--defense", "gaussian_noise:noise_std=0.05", "--out", "behind",
    )  # fmt: skip
    assert done.code in (1, 3), done.stderr
    record = json.loads((place / "behind" / "result.json").read_text())
    assert record["config"]["defenses"] == [
        {"name": "random_zeroing", "settings": {"ratio": 0.1}},
        {"name": "gaussian_noise", "settings": {"noise_std": 0.05}},
    ]
    labels = [a["evidence"]["label"] for a in record["attacks"]]
    assert labels[0] == "linear_inverse+noise_floor+surviving_values"
    for wrong, said in (
        ("no_such", "no_such"),
        ("random_zeroing:ratio=2", "ratio"),
        ("random_zeroing:share=.5", "share"),
        ("random_zeroing:.5", "setting=value"),
        ("gradient_pruning", "a defense of features"),
    ):
        refused = command("audit", *common, "--defense", wrong, "--out", "x")
        assert refused.code == 2, wrong
        assert said in refused.line, wrong
