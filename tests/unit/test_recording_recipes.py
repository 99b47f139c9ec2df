"""The recipes of docs/how-to/record-a-step.md run as they stand, where they can."""

from __future__ import annotations

import re
import types
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from privaudit import Auditor, Client
from privaudit.recording import Update
from tests.unit.command import ROOT

PAGE = (ROOT / "docs/how-to/record-a-step.md").read_text(encoding="utf-8")
RECIPE = re.compile(
    r"<!-- recipe: (?P<name>\w+); needs: (?P<needs>[\w, ]+) -->\n"
    r"```py\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RECIPES = {m["name"]: m for m in RECIPE.finditer(PAGE)}
PREAMBLE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
FILES = {
    "trainer": "update-trainer.safetensors",
    "lightning": "update-lightning.safetensors",
    "flower": "update-flower.safetensors",
    "nvflare": "update-round-0.safetensors",
}


def test_every_recipe_is_found() -> None:
    assert set(RECIPES) == set(FILES)
    assert PAGE.count("```py\n") == len(RECIPES)


def one_round(monkeypatch: pytest.MonkeyPatch, net: nn.Module) -> list[Any]:
    """NVFlare's client API without a job: one round, from real FLModels."""
    flare = import_module("nvflare.client")
    rounds, sent = [0], list[Any]()
    model = flare.FLModel(
        params={n: v.clone() for n, v in net.state_dict().items()}, current_round=0
    )
    monkeypatch.setattr(flare, "init", lambda: None)
    monkeypatch.setattr(flare, "is_running", lambda: bool(rounds))
    monkeypatch.setattr(flare, "receive", lambda: model if rounds.pop() == 0 else None)
    monkeypatch.setattr(flare, "send", sent.append)
    return sent


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_recipe(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = RECIPES[name]
    for needed in recipe["needs"].split(", "):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed (pip install {needed})")
    monkeypatch.chdir(tmp_path)
    page = types.ModuleType("recipe")
    with torch.random.fork_rng():
        exec(compile(PREAMBLE, "preamble", "exec"), vars(page))  # noqa: S102
        if name == "nvflare":
            one_round(monkeypatch, page.before)
        exec(compile(recipe["code"], name, "exec"), vars(page))  # noqa: S102
    update = Update.load(tmp_path / FILES[name])
    update.check(page.before)
    assert update.facts.micro_batches == 1
    assert update.facts.image_shape == (3, 32, 32)
    assert update.facts.mode == "train"
    moved = [
        not torch.equal(a, b)
        for a, b in zip(page.before.parameters(), page.net.parameters(), strict=True)
    ]
    assert any(moved), "the recipe really trained"
    auditor = Auditor(page.before, client=Client(batch_size=1))
    blind = auditor.attack_gradient(update, batch_size=1)
    assert blind.verdict.word == "leaks", blind.verdict.line
    torch.testing.assert_close(
        blind.attacks["closed_form"].reconstructions, page.images, rtol=0, atol=1e-2
    )
