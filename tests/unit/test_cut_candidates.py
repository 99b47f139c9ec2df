"""All places to cut a model, and what is known about model families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit.adapters import ADAPTERS, facts_of, hint_for, require_images
from privaudit.adapters.base import IMAGENET, OPENAI_CLIP, depths, pair_of
from privaudit.errors import ConfigError
from privaudit.exposure import resolve
from privaudit.exposure._graph_reach import bypassed
from privaudit.inventory.split_candidates import split_candidates
from tests.unit.test_guard import snapshot


class Small(nn.Module):
    """Two convolutions, the second twice and past a shortcut, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(inplace=True))
        self.again = nn.Conv2d(8, 8, 3, padding=1)
        self.ids = Ids()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(128, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.again(x)
        x = x + self.again(x)
        self.ids(x)
        return self.head(x)  # type: ignore[no-any-return]


class Ids(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(1)


IMAGES = torch.rand(1, 3, 16, 16)


def test_every_place_with_its_cost() -> None:
    model = Small().eval()
    before = snapshot(model)
    found = {c.name: c for c in split_candidates(model, model, IMAGES)}
    assert snapshot(model) == before
    assert list(found) == [
        "stem.0", "stem", "again#0", "again#1", "ids", "head.0", "head",
    ]  # fmt: skip
    assert found["stem"].aliases == ["stem.1"]
    assert found["stem"].kind == "Sequential"
    assert found["stem"].shape == [8, 4, 4]
    assert found["stem"].bytes_per_image == 8 * 4 * 4 * 4
    # 16 positions, 8 channels out, 3·4·4 in; then 8·3·3 in; two for a multiply-add.
    first, second = 2 * 16 * 8 * 48, 2 * 16 * 8 * 72
    flops = {name: c.client_flops for name, c in found.items()}
    assert flops["stem.0"] == flops["stem"] == first
    assert flops["again#0"] == first + second
    assert flops["again#1"] == flops["head.0"] == first + 2 * second
    assert flops["head"] == first + 2 * second + 2 * 128 * 5
    complete = {name: c.complete for name, c in found.items()}
    assert complete.pop("again#1") is False
    assert complete.pop("ids") is None
    assert set(complete.values()) == {True}
    assert found["again#1"].note == "values pass beside this place"
    assert "int64" in found["ids"].note
    assert (found["stem"].layout, found["stem"].grid) == ("nchw", (4, 4))
    assert (found["head.0"].layout, found["head"].layout) == ("vector", "vector")


def test_only_those_named_and_unverified() -> None:
    model = Small().eval()
    names = ["stem.1", "again#1"]
    found = split_candidates(model, model, IMAGES, names=names, verify=False)
    assert [c.name for c in found] == ["stem", "again#1"]
    assert [c.complete for c in found] == [None, None]


def test_every_candidate_can_be_cut_by_its_name() -> None:
    model = Small().eval()
    for candidate in split_candidates(model, model, IMAGES, verify=False):
        for name in (candidate.name, *candidate.aliases):
            if candidate.shape:
                cut = resolve(model, name, lambda: model(IMAGES))
                sent = cut.capture(model, lambda: model(IMAGES))
                assert list(sent.shape[1:]) == candidate.shape


def test_attention_counts_as_matrix_products() -> None:
    model = nn.Sequential(
        nn.Flatten(2), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    ).eval()
    found = {c.name: c for c in split_candidates(model, model, torch.rand(1, 5, 4, 4))}
    # query, key, value; scores and mixing; projection: in multiply-adds.
    attention = 3 * 5 * 16 * 16 + 2 * 5 * 5 * 16 + 5 * 16 * 16
    assert found["1.self_attn"].client_flops == 2 * attention
    assert found["1"].client_flops == 2 * (attention + 2 * 5 * 16 * 32)


def bypassed_at(forward: Callable[[Tensor], tuple[Tensor, Tensor]]) -> bool:
    """Whether the graph shows a way past the first tensor to the second."""
    leaf = torch.rand(2, 4, requires_grad=True)
    sent, out = forward(leaf)
    return sent.grad_fn in bypassed(out, leaf)


def test_ways_past_a_tensor_are_found_in_the_graph() -> None:
    double = torch.nn.Linear(4, 4)
    assert not bypassed_at(lambda x: (y := double(x), y.sin() + y))
    assert bypassed_at(lambda x: (y := double(x), y + x))
    assert bypassed_at(lambda x: (y := double(x), torch.cat([y, 0 * x])))
    assert not bypassed_at(lambda x: (y := double(x), y + x.detach()))
    # Of what no output needs, nothing is said.
    assert not bypassed_at(lambda x: (double(x), x.sin()))
    assert not bypassed_at(lambda x: (double(x).detach(), x.sin()))


def test_a_view_changed_in_place_behind_the_cut_is_no_way_past_it() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), nn.ReLU(inplace=True), nn.Flatten()
    ).eval()
    found = {c.name: c.complete for c in split_candidates(model, model, IMAGES)}
    assert found == {"0": True, "1": True, "2": True, "3": True}


def test_a_shortcut_of_no_weight_yet_counts_as_a_way_past() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)  # type: ignore[arg-type]

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + self.b(x)  # type: ignore[no-any-return]

    model = Gated()
    found = {c.name: c.complete for c in split_candidates(model, model, IMAGES)}
    assert found == {"a": False, "b": False}


def test_time_first_is_listed_by_image() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), Turned(2, 0, 1),
        nn.TransformerEncoderLayer(8, 2, 16), Turned(1, 0, 2),
    ).eval()  # fmt: skip
    found = {c.name: c for c in split_candidates(model, model, IMAGES)}
    assert found["3"].shape == [16, 8]
    assert (found["3"].layout, found["3"].grid) == ("tokens", (4, 4))
    assert found["3"].complete


class Turned(nn.Module):
    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(*self.axes)


def test_images_have_to_fit() -> None:
    model = Small().eval()
    with pytest.raises(ConfigError, match="images of floats"):
        split_candidates(model, model, IMAGES.byte())
    with pytest.raises(ConfigError, match="images that the model takes"):
        split_candidates(model, model, torch.rand(1, 1, 16, 16))


# ---- adapters


def test_the_families() -> None:
    assert sorted(ADAPTERS) == ["open_clip", "timm", "torchvision", "transformers"]
    assert facts_of(Small()) is None
    assert hint_for(Small(), "stem.0") is None


def test_torchvision() -> None:
    import torchvision

    facts = facts_of(torchvision.models.resnet18())
    assert facts is not None
    assert (facts.mean, facts.std) == IMAGENET
    assert facts.family == "torchvision ResNet"
    assert (facts.patch, facts.prefix_tokens) == (None, None)
    assert list(facts.split_points) == [f"block {i}" for i in range(1, 6)]


def test_a_part_is_found_inside_a_whole() -> None:
    import timm

    inner = timm.create_model("vit_tiny_patch16_224", embed_dim=32, num_heads=2)
    model = nn.Sequential(nn.Identity(), inner)
    facts = facts_of(model)
    assert facts is not None
    assert facts.mean == (0.5, 0.5, 0.5)
    assert facts.normalisation_source == "timm pretrained_cfg"
    assert (facts.patch, facts.prefix_tokens) == ((16, 16), 1)
    assert facts.split_points["layer 6"] == "1.blocks.5"
    hint = hint_for(model, "1.blocks.5")
    assert hint is not None
    assert (hint.prefixes, hint.strides) == ((1, 0), ((16, 16),))


def test_transformers() -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=8, intermediate_size=16, num_hidden_layers=4,
        num_attention_heads=2, image_size=16, patch_size=8,
    )  # fmt: skip
    facts = facts_of(CLIPVisionModelWithProjection(config))
    assert facts is not None
    assert (facts.mean, facts.std) == OPENAI_CLIP
    assert list(facts.split_points) == [f"layer {i}" for i in range(5)]
    assert facts.split_points["layer 0"].endswith("vision_model.pre_layrnorm")
    assert facts.split_points["layer 4"].endswith("encoder.layers.3")


class Clip(nn.Module):
    """Named as a whole CLIP of open_clip is built."""

    def __init__(self) -> None:
        super().__init__()
        self.visual, self.transformer = nn.Linear(4, 4), nn.Linear(4, 4)


Clip.__module__ = "open_clip.model"


def whole_clip() -> Any:
    from transformers import CLIPConfig, CLIPModel

    small = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": 9}
    return CLIPModel(
        CLIPConfig(
            vision_config={**small, "image_size": 16, "patch_size": 8},
            text_config={**small, **ids},
        )
    )


def test_a_whole_clip_is_refused_with_the_part_to_pass() -> None:
    with pytest.raises(ConfigError, match="takes images and text") as error:
        require_images(Clip())
    assert "model.visual" in error.value.hint
    model = whole_clip()
    with pytest.raises(ConfigError, match="takes images and text") as error:
        resolve(model, "vision_model.encoder.layers.0", lambda: None)
    assert "model.vision_model" in error.value.hint
    require_images(model.vision_model)


def test_quarters_of_the_depth() -> None:
    assert depths(12) == [0, 3, 6, 9, 12]
    assert depths(24) == [0, 6, 12, 18, 24]
    assert depths(1) == [0, 1]


@pytest.mark.parametrize(
    ("given", "size"), [(8, (8, 8)), ([8, 4], (8, 4)), (None, None), ("8", None)]
)
def test_sizes_as_pairs(given: object, size: tuple[int, int] | None) -> None:
    assert pair_of(given) == size
