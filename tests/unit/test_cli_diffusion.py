"""--diffusion: which prior guided diffusion takes, said on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torchvision.utils import save_image

from privaudit._controls import shipped_images
from privaudit.priors.diffusion import PriorCard, file
from privaudit.priors.diffusion.card import NetworkFacts
from privaudit.priors.diffusion.unet import UNet
from tests.models.pipelines import pixel_pipeline
from tests.unit.command import Command

FIXED = ("--model", "model.py:Small", "--images", "images", "--attacks", "drag",
         "--budget", "3")  # fmt: skip


@pytest.fixture
def command(tmp_path: Path) -> Command:
    source = "from tests.unit.test_split_audit import Small\n"
    (tmp_path / "model.py").write_text(source)
    (tmp_path / "images").mkdir()
    for i, image in enumerate(shipped_images(2, (3, 16, 16))):
        save_image(image, tmp_path / "images" / f"{i}.png")
    return Command(tmp_path)


def trained(path: Path) -> None:
    card = PriorCard(
        name="of the test", kind="pixel diffusion", channels=3, parameters=1,
        learnt_from="nothing", good_for="tests", not_for="anything else",
    )  # fmt: skip
    network = UNet(3, (8, 16), 16)
    file.save(path, network, NetworkFacts(widths=(8, 16), time_width=16, card=card))


def drags(command: Command, out: str) -> list[Any]:
    record = json.loads((command.folder / out / "result.json").read_text())
    attacks = record["attacks"]
    return [a for a in attacks if a["evidence"]["label"] == "drag"]


def test_an_audit_takes_a_trained_prior(command: Command) -> None:
    trained(command.folder / "p.safetensors")
    done = command("audit", *FIXED, "--split", "stem", "--out", "o", "--diffusion",
                   "p.safetensors")  # fmt: skip
    assert done.code in (1, 3), done.stderr
    (found,) = drags(command, "o")
    assert found["evidence"]["state"] in ("plateau", "converged", "stopped"), found
    assert "prior of the test: learnt from nothing" in json.dumps(found)


def test_a_sweep_takes_a_folder_of_diffusers(command: Command) -> None:
    pytest.importorskip("diffusers")
    pixel_pipeline(command.folder / "pipeline")
    done = command("sweep", *FIXED, "--cut", "stem", "--out", "o", "--diffusion",
                   "pipeline")  # fmt: skip
    assert done.code in (0, 1, 3), done.stderr
    assert "| drag |" in (command.folder / "o" / "report.md").read_text()
    (cell,) = (command.folder / "o").rglob("cell.json")
    settings = json.loads(cell.read_text())["key"]["settings"]
    assert settings["priors"]["diffusion"][0] == "pipeline"


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("digit", "got 'digit', none of them"),
        ("gone.safetensors", "gone.safetensors: expected the file of a prior"),
        ("images", "expected the folder of a diffusers pipeline"),
    ],
)
def test_a_prior_that_is_not_there_ends_it_at_once(
    command: Command, source: str, match: str
) -> None:
    done = command("audit", *FIXED, "--split", "stem", "--out", "o", "--diffusion",
                   source)  # fmt: skip
    assert done.verdict == ("error", 2)
    assert match in done.line


def test_without_a_cut_it_is_refused(command: Command) -> None:
    trained(command.folder / "p.safetensors")
    done = command("audit", *FIXED[:4], "--out", "o", "--diffusion", "p.safetensors")
    assert done.verdict == ("error", 2)
    assert "priors are of attacks on features" in done.line
