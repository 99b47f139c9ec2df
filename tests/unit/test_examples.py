"""Every example runs by itself, in a folder of its own."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from tests.unit.command import ROOT, Command

EXAMPLES = ROOT / "examples"
SAYS = {
    "audit_mlp_with_dropout": ["privaudit: leaks |", "report.html"],
    "custom_training_step": ["privaudit: leaks |", "closed_form exact"],
    "record_a_step": [
        "without the image: privaudit: leaks |",
        "with it: privaudit: leaks |",
    ],
    "segmentation": ["privaudit: leaks |", "reconstructions: (2, 1, 32, 32)"],
    "gate_in_python": ["privaudit: leaks |", "passes at SSIM 0.5: False"],
}


WITH_DATA = {"train_digits_client", "train_split_clients", "train_tiny_stylegan"}
WITH_DATA |= {"federated_defenses"}


def test_every_example_is_here() -> None:
    assert {f.stem for f in EXAMPLES.glob("*.py")} == set(SAYS) | WITH_DATA


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str, tmp_path: Path) -> None:
    done = Command(tmp_path).script(EXAMPLES / f"{name}.py")
    assert done.code == 0, done.stderr
    assert "Warning" not in done.stderr
    for text in SAYS[name]:
        assert text in done.stdout


def pictures(file: Path) -> Path:
    """A zip with two noise pictures of each of two classes in both parts."""
    random = np.random.default_rng(0)
    with zipfile.ZipFile(file, "w") as archive:
        for part in ("train", "test"):
            for number, label in enumerate(("cat", "cat", "ship", "ship")):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                content = io.BytesIO()
                Image.fromarray(pixels).save(content, "JPEG")
                archive.writestr(f"{part}/{label}/{number}.jpg", content.getvalue())
    return file


def test_training_the_split_clients(tmp_path: Path) -> None:
    data, out = pictures(tmp_path / "data.zip"), tmp_path / "out"
    script = EXAMPLES / "train_split_clients.py"
    for model, arguments in {
        "cnn": ["--epochs", "1"],
        "vit": ["--epochs", "1", "--teacher", str(out / "split_cnn.safetensors")],
    }.items():
        done = Command(tmp_path).script(
            script, "--data", data, "--out", out, "--model", model, *arguments
        )
        assert done.code == 0, done.stderr
        assert "Warning" not in done.stderr
        assert "images: 4 train, 4 test" in done.stdout
        assert "epoch 1/1: loss " in done.stdout
        assert done.line.startswith(f"split_{model}.safetensors: ")
        kinds = {
            v.dtype for v in load_file(out / f"split_{model}.safetensors").values()
        }
        assert {str(kind) for kind in kinds} <= {"torch.float16", "torch.int64"}


def test_training_comes_out_the_same_again(tmp_path: Path) -> None:
    data, script = pictures(tmp_path / "data.zip"), EXAMPLES / "train_split_clients.py"
    stored = []
    for out, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        done = Command(tmp_path).script(
            script, "--data", data, "--out", tmp_path / out, "--model", "cnn",
            "--epochs", "1", "--seed", seed,
        )  # fmt: skip
        assert done.code == 0, done.stderr
        stored.append((tmp_path / out / "split_cnn.safetensors").read_bytes())
    assert stored[0] == stored[1]
    assert stored[0] != stored[2]


def test_training_the_digits_client(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (24, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=images, labels=np.arange(24) % 10)
    done = Command(tmp_path).script(
        EXAMPLES / "train_digits_client.py", "--data", tmp_path / "d.npz",
        "--out", tmp_path / "out", "--epochs", "1", "--batch", "8", "--held-out", "8",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "images: 16 to learn from, 8 held out" in done.stdout
    assert done.line.startswith("digits_client.safetensors: ")


def test_training_the_small_generator(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (24, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=images)
    stored = []
    for out, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        done = Command(tmp_path).script(
            EXAMPLES / "train_tiny_stylegan.py", "--data", tmp_path / "d.npz",
            "--out", tmp_path / out, "--steps", "3", "--batch", "4",
            "--held-out", "8", "--seed", seed,
        )  # fmt: skip
        assert done.code == 0, done.stderr
        assert "images: 16 to learn from, 8 held out" in done.stdout
        assert done.line.startswith("tiny_stylegan.safetensors: ")
        with Image.open(tmp_path / out / "samples.png") as sheet:
            assert sheet.size == (672, 672)
        stored.append((tmp_path / out / "tiny_stylegan.safetensors").read_bytes())
    assert stored[0] == stored[1]
    assert stored[0] != stored[2]


def test_defenses_of_a_federated_training(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (48, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=images, labels=np.arange(48) % 10)
    done = Command(tmp_path).script(
        EXAMPLES / "federated_defenses.py", "--data", tmp_path / "d.npz",
        "--out", tmp_path / "out", "--rounds", "2", "--held-out", "16",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all(": accuracy 0." in line for line in lines), done.stdout
    assert lines[0].endswith("worst SSIM 1.00 naive, 1.00 adaptive")
    assert (tmp_path / "out" / "report.html").is_file()
