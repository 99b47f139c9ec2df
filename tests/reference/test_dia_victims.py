"""Done-when 2: closed forms see the authors' own victims through their dropout.

The models and images are those of Scheliga 2023, batch 1, masks unknown. All 64 images
a cell are slow; so are the photographs through torchvision's ViT-B/16.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from privaudit import Auditor
from tests.reference import cells

FOLDER = cells.shared_data()
pytestmark = pytest.mark.skipif(
    FOLDER is None,
    reason="the victims' images are not in ../shared/data; set PRIVAUDIT_SHARED",
)


def folder() -> Path:
    assert FOLDER is not None
    return FOLDER


def check(found: cells.CellResult) -> None:
    assert found.mean >= 0.999, found
    assert found.worst >= 0.99, found
    assert found.states == {"exact": len(found.ssim)}


def test_there_are_sixteen_cells() -> None:
    assert len({c.name for c in cells.CELLS}) == 16


@pytest.mark.parametrize("cell", cells.CELLS, ids=lambda c: c.name)
def test_four_victims(cell: cells.Cell) -> None:
    check(cells.attack_cell(cell, folder(), 4))


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells.CELLS, ids=lambda c: c.name)
def test_all_victims(cell: cells.Cell) -> None:
    found = cells.attack_cell(cell, folder(), 64)
    assert len(found.ssim) == 64
    check(found)


@pytest.mark.slow
def test_photographs_through_a_vision_transformer() -> None:
    images = cells.photographs(folder(), 30)
    assert len(images) == 30
    labels = torch.arange(30) * 31 % 1000
    model = cells.vit_b_16()
    check(cells.attack_all("vit_b_16", model, images, labels, cells.IMAGENET))


@pytest.mark.slow
def test_a_zero_head_is_a_finding_and_not_safety() -> None:
    images, normal = cells.photographs(folder(), 1), cells.IMAGENET
    result = Auditor(
        cells.vit_b_16(zero_head=True), mean=normal.mean, std=normal.std,
        attacks=["closed_form"],
    ).audit((images, torch.tensor([207])))  # fmt: skip
    found = {f.code for f in result.record.inventory.findings}
    assert "no-gradient-behind-head" in found
    assert result.verdict.word not in ("leaks", "no leak found")
    assert result.verdict.exit_code not in (0, 1)
