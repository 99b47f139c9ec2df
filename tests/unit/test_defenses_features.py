"""Defenses of what a device sends, on cases that can be checked by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.defenses import Disco, RandomZeroing, TokenDrop
from privaudit.defenses._token_entry import entry_of
from privaudit.errors import ConfigError
from privaudit.exposure import Cut, FeatureExposure
from privaudit.types import Batch, FeatureLayout
from tests.contract.feature_cases import photographs
from tests.models.vit import small_vit

TOKENS = FeatureLayout("tokens", 1, (2, 4))
VIT = FeatureLayout("tokens", 1, (4, 4))


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered() -> Tensor:
    """(1, 9, 2): token t holds t."""
    return torch.arange(9.0)[None, :, None].expand(1, 9, 2)


def test_dropping_keeps_prefix_and_order() -> None:
    left = TokenDrop(ratio=0.5).apply_features(numbered(), TOKENS, draws())[0, :, 0]
    assert len(left) == 1 + 4
    assert left[0] == 0
    assert left.tolist() == sorted(set(left.tolist()))
    assert set(left.tolist()) <= set(range(9))


def test_dropping_draws_every_token_alike() -> None:
    generator, counts = draws(), torch.zeros(9)
    for _ in range(400):
        left = TokenDrop(ratio=0.25).apply_features(numbered(), TOKENS, generator)
        counts[left[0, :, 0].long()] += 1
    assert counts[0] == 400
    assert counts[1:].sum() == 400 * 6
    assert counts[1:].sub(300).abs().max() < 40


@pytest.mark.parametrize("ratio", [0.01, 0.99])
def test_dropping_none_or_all_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match="leaves out some of 8 patch"):
        TokenDrop(ratio=ratio).apply_features(numbered(), TOKENS, draws())


@pytest.mark.parametrize("ratio", [0.0, 1.0, float("nan")])
def test_shares_of_nothing_or_all_are_refused(ratio: float) -> None:
    for make in (TokenDrop, RandomZeroing, Disco):
        with pytest.raises(ValidationError, match="ratio"):
            make(ratio=ratio)


def sent_under(defense: TokenDrop, images: Tensor, cut: str = "layers.1") -> Tensor:
    """What one device sends of one image, for one seed."""
    exposure = FeatureExposure(Normalisation(), Cut(cut), VIT)
    batch = Batch(images, None)
    return exposure.observe(
        small_vit().eval(), batch, defenses=[defense], seed=3
    ).features


def patches_that_show(defense: TokenDrop, cut: str = "layers.1") -> list[int]:
    """Which of 16 patches change what is sent, when they alone change."""
    images, shown = photographs(1), []
    before = sent_under(defense, images, cut)
    for index, (row, column) in enumerate(itertools.product(range(0, 16, 4), repeat=2)):
        other = images.clone()
        other[..., row : row + 4, column : column + 4] = 0.5
        if not torch.equal(sent_under(defense, other, cut), before):
            shown.append(index)
    return shown


def test_what_is_dropped_at_the_input_is_not_in_what_is_sent() -> None:
    inside, outside = TokenDrop(ratio=0.25, where="input"), TokenDrop(ratio=0.25)
    assert sent_under(inside, photographs(1)).shape == (1, 1 + 12, 96)
    assert len(patches_that_show(inside)) == 12
    assert len(patches_that_show(outside)) == 16


def test_dropping_at_the_input_runs_the_rest_as_it_is() -> None:
    defense, images, model = TokenDrop(where="input"), photographs(1), small_vit()
    kept = patches_that_show(defense, "layers.0")
    with torch.no_grad():
        tokens = torch.cat([model.first, model.embed(images)], 1) + model.position
        slots = [0, *(1 + slot for slot in kept)]
        by_hand = model.eval().layers[0](tokens[:, slots])
    assert len(kept) == 8
    assert torch.allclose(sent_under(defense, images, "layers.0"), by_hand, atol=1e-5)


def test_images_drop_other_tokens_and_hooks_are_gone() -> None:
    model, twice = small_vit().eval(), photographs(1).expand(2, -1, -1, -1)
    exposure = FeatureExposure(Normalisation(), Cut("layers.1"), VIT)
    defense = TokenDrop(where="input")
    sent = [
        exposure.observe(model, Batch(twice, None), defenses=[defense], seed=s).features
        for s in (0, 0, 1)
    ]
    assert not torch.equal(sent[0][0], sent[0][1])
    assert torch.equal(sent[0], sent[1])
    assert not torch.equal(sent[0], sent[2])
    assert all(not m._forward_pre_hooks for m in model.modules())


def torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = VisionTransformer(16, 4, 2, 2, 32, 64)
        nn.init.normal_(model.get_parameter("encoder.pos_embedding"))
    return model.eval()


class Rotary(nn.Module):
    """Positions are added anew inside of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)
        self.block, self.end = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("position", torch.arange(16.0)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = tokens + torch.sin(self.block(tokens) + self.position)
        return self.end(torch.cumsum(tokens, 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "cut", "path"),
    [
        (small_vit().eval(), "layers.1", "drop"),
        (torchvision_vit(), "encoder.layers.encoder_layer_0", "encoder.dropout"),
    ],
)
def test_finds_the_place_behind_the_positions(
    model: nn.Module, cut: str, path: str
) -> None:
    exposure, images = FeatureExposure(Normalisation(), Cut(cut), VIT), photographs(1)
    found = entry_of(model, exposure, lambda: model(images), tokens=17, at=None)
    assert found == path


def test_positions_inside_blocks_are_refused() -> None:
    model, images = Rotary(), photographs(1)
    layout = FeatureLayout("tokens", 0, (4, 4))
    behind = FeatureExposure(Normalisation(), Cut("end"), layout)
    batch = Batch(images, None)
    with pytest.raises(ConfigError, match="none among"):
        behind_blocks(model, behind, batch, TokenDrop(where="input"))


def behind_blocks(
    model: nn.Module, exposure: FeatureExposure, batch: Batch, defense: TokenDrop
) -> Tensor:
    return exposure.observe(model, batch, defenses=[defense]).features


def test_a_place_that_was_named_is_taken_or_refused() -> None:
    model, images = small_vit().eval(), Batch(photographs(1), None)
    exposure = FeatureExposure(Normalisation(), Cut("layers.1"), VIT)
    named = TokenDrop(where="input", at="layers.1")
    assert behind_blocks(model, exposure, images, named).shape == (1, 9, 96)
    for wrong in ("patch", "no.such"):
        defense = TokenDrop(where="input", at=wrong)
        with pytest.raises(ConfigError, match="is given 17 tokens"):
            behind_blocks(model, exposure, images, defense)


def test_dropping_at_the_input_needs_images_and_a_grid() -> None:
    defense = TokenDrop(where="input")
    with pytest.raises(ConfigError, match="computed inside its on_device"):
        defense.apply_features(numbered(), TOKENS, draws())
    gridless = FeatureLayout("tokens", 1)
    with pytest.raises(ConfigError, match="grid of patches is known"):
        defense.apply_features(numbered(), gridless, draws())


def test_zeroing_leaves_its_share_unscaled() -> None:
    sent = torch.randn(1, 100, 200, generator=draws(1)) + 5
    left = RandomZeroing(ratio=0.3).apply_features(sent, TOKENS, draws())
    assert float((left == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert torch.equal(left[left != 0], sent[left != 0])


class Fixed(nn.Module):
    """Scores 0, 1, 2, … for the channels of every image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, features: Tensor) -> Tensor:
        return torch.arange(float(self.channels)).expand(len(features), -1)


@pytest.mark.parametrize(
    ("kind", "shape", "axis"),
    [
        ("tokens", (1, 9, 8), 2),
        ("nchw", (1, 8, 3, 3), 1),
        ("nhwc", (1, 3, 3, 8), 3),
        ("vector", (1, 8), 1),
    ],
)
def test_channels_below_the_quantile_are_nearly_gone(
    kind: str, shape: tuple[int, ...], axis: int
) -> None:
    layout = FeatureLayout(kind)  # type: ignore[arg-type]
    sent = torch.randn(shape, generator=draws())
    disco = Disco(ratio=0.25).with_pruner(Fixed(8))
    left = disco.apply_features(sent, layout, draws())
    ratio = (left / sent).movedim(axis, -1).reshape(-1, 8)
    assert bool((ratio[:, :2] < 1e-8).all())
    assert bool((ratio[:, :2] > 0).all())
    assert torch.allclose(ratio[:, 2:], torch.ones(1), atol=1e-3)


def test_a_channel_at_the_quantile_is_halved() -> None:
    disco = Disco(ratio=0.5, temperature=0.5).with_pruner(Fixed(3))
    left = disco.apply_features(torch.ones(1, 3), FeatureLayout("vector"), draws())
    low, half, high = left[0].tolist()
    assert half == pytest.approx(0.5)
    assert low == pytest.approx(1 / (1 + torch.e**2))
    assert high == pytest.approx(1 - low)
