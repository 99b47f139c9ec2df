"""Models off the shelf, cut by name: whole, read rightly, and left as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit.adapters import facts_of
from privaudit.config import Split
from privaudit.exposure import check_cut, resolve
from privaudit.inventory.layout import find_layout
from privaudit.inventory.split_candidates import split_candidates
from privaudit.types import FeatureLayout
from tests.unit.test_guard import snapshot
from tests.zoo.split_models import ZOO, Place, nchw, tokens


def images(size: tuple[int, int]) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(2, 3, *size, generator=generator)


def outputs(out: Any) -> Tensor:
    """The main tensor of what a model gives."""
    if isinstance(out, Tensor):
        return out
    return next(v for v in out.values() if isinstance(v, Tensor))


def check(model: nn.Module, place: Place, x: Tensor) -> None:
    """Cut there, finish from what was sent, and hold layout and model against it."""
    before = snapshot(model)
    whole = outputs(model(x))
    cut = resolve(model, place.split, lambda: model(x))
    sent = cut.capture(model, lambda: model(x))
    assert tuple(sent.shape[1:]) == place.shape
    server = outputs(cut.finish(model, lambda: model(torch.zeros_like(x)), sent))
    assert torch.allclose(server, whole, rtol=1e-6, atol=0)
    assert check_cut(model, cut, model, x).complete

    def features(shown: Tensor) -> Tensor:
        with torch.no_grad():
            return cut.capture(model, lambda: model(shown))

    found = find_layout(model, Split(place.split), x, features)
    assert read(found) == read(place.layout)
    assert found.certain
    assert found.source
    assert snapshot(model) == before


def read(layout: FeatureLayout) -> tuple[str, int, tuple[int, int] | None]:
    return layout.kind, layout.prefix_tokens, layout.grid


def test_there_are_enough() -> None:
    assert len(ZOO) >= 24
    assert all(len(entry.places) == 3 for entry in ZOO.values())


@pytest.mark.parametrize("name", ZOO)
def test_cut_at_three_places(name: str) -> None:
    entry = ZOO[name]
    model = entry.build().eval()
    for place in entry.places:
        check(model, place, images(entry.size))


PUBLISHED = {
    "torchvision resnet18": ["maxpool", "layer1", "layer2", "layer3", "layer4"],
    "torchvision vit": [
        "encoder.dropout",
        *(f"encoder.layers.encoder_layer_{i}" for i in (0, 1, 2)),
    ],
    "timm vit": ["norm_pre", "blocks.0", "blocks.1", "blocks.2"],
    "timm swin": ["layers.0", "layers.1"],
    "transformers clip": [
        "pre_layrnorm", "encoder.layers.0", "encoder.layers.1", "encoder.layers.2",
    ],
    "transformers dinov2 with registers": [
        "embeddings", "encoder.layer.0", "encoder.layer.1", "encoder.layer.2",
    ],
    "transformers swin": ["encoder.layers.0", "encoder.layers.1"],
    "open_clip vit": [
        "ln_pre", *(f"transformer.resblocks.{i}" for i in (0, 1, 2)),
    ],
    "open_clip resnet": ["avgpool", "layer1", "layer2", "layer3", "layer4"],
}  # fmt: skip
"""Of three layers the quarters round to 0, 1, 2 (twice) and 3."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_places_of_the_papers_can_be_cut(name: str) -> None:
    entry = ZOO[name]
    model = entry.build().eval()
    facts = facts_of(model)
    assert facts is not None
    x = images(entry.size)
    points = list(facts.split_points.values())
    assert [p.removeprefix("vision_model.") for p in points] == PUBLISHED[name]
    for point in points:
        cut = resolve(model, point, lambda: model(x))
        assert check_cut(model, cut, model, x).complete


@pytest.mark.parametrize("name", ["timm swin", "torchvision mobilenet v2", "rows"])
def test_candidates_are_what_cutting_finds(name: str) -> None:
    entry = ZOO[name]
    model = entry.build().eval()
    before = snapshot(model)
    found = {
        alias: c
        for c in split_candidates(model, model, images(entry.size))
        for alias in (c.name, *c.aliases)
    }
    assert snapshot(model) == before
    for place in entry.places:
        candidate = found[place.split]
        layout = place.layout
        assert tuple(candidate.shape) == place.shape
        assert (candidate.layout, candidate.prefix_tokens) == read(layout)[:2]
        assert candidate.grid == layout.grid
        assert candidate.complete


# ---- at full size, once


def clip(name: str) -> nn.Module:
    import open_clip

    visual = open_clip.create_model(name, pretrained=None, load_weights=False).visual
    assert isinstance(visual, nn.Module)
    return visual.eval()


@pytest.mark.slow
def test_clip_vit_b_16() -> None:
    model = clip("ViT-B-16")
    facts = facts_of(model)
    assert facts is not None
    names = [f"transformer.resblocks.{i}" for i in (2, 5, 8, 11)]
    assert dict(facts.split_points) == dict(
        zip([f"layer {i}" for i in (0, 3, 6, 9, 12)], ["ln_pre", *names], strict=True)
    )
    for split in ("ln_pre", names[1], names[3]):
        check(model, tokens(split, 768, 1, 14), images((224, 224)))


@pytest.mark.slow
def test_clip_rn50() -> None:
    model = clip("RN50")
    facts = facts_of(model)
    assert facts is not None
    assert facts.split_points["block 1"] == "avgpool"
    for place in (nchw("avgpool", 64, 56), nchw("layer2", 512, 28),
                  nchw("layer4", 2048, 7)):  # fmt: skip
        check(model, place, images((224, 224)))


@pytest.mark.slow
def test_dinov2_base() -> None:
    from transformers import Dinov2Config, Dinov2Model

    model = Dinov2Model(Dinov2Config(image_size=518, patch_size=14)).eval()
    facts = facts_of(model)
    assert facts is not None
    assert list(facts.split_points) == [f"layer {i}" for i in (0, 3, 6, 9, 12)]
    for split in ("embeddings", "encoder.layer.5", "encoder.layer.11"):
        check(model, tokens(split, 768, 1, 16), images((224, 224)))
