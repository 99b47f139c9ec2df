"""Which axis of features is what: cases 24 and 25, and what settles the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit.config import Split
from privaudit.errors import ConfigError
from privaudit.exposure import resolve
from privaudit.inventory._layout_probe import probe_images, scores
from privaudit.inventory.layout import about_layout, find_layout, in_words, layout_of
from privaudit.types import FeatureLayout
from tests.models.vit import small_vit

Read = tuple[str, int, tuple[int, int] | None]


def found(
    model: nn.Module, split: Split | str, size: tuple[int, int] = (32, 32)
) -> FeatureLayout:
    split = Split(split) if isinstance(split, str) else split
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1))
    cut = resolve(model, split, lambda: model(x))

    def capture(shown: Tensor) -> Tensor:
        with torch.no_grad():
            return cut.capture(model, lambda: model(shown))

    return find_layout(model, split, x, capture)


def read(layout: FeatureLayout) -> Read:
    return layout.kind, layout.prefix_tokens, layout.grid


class Strange(nn.Module):
    """Hides from every adapter what the model inside is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.run = Function(model.forward)
        self.out = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.run(x))  # type: ignore[no-any-return]


class Function(nn.Module):
    """A function as a module without parts."""

    def __init__(self, call: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Any:
        return self.call(x)


# ---- case 24: tokens


def timm_vit(**settings: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    kind = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1}
    return VisionTransformer(num_heads=2, num_classes=2, **kind | settings).eval()  # type: ignore[no-any-return]


def distilled() -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(  # type: ignore[no-any-return]
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=2
    ).eval()


AVERAGE = {"class_token": False, "global_pool": "avg"}
TOKENS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int], int]] = {
    "class": (timm_vit, (32, 32), 1),
    "class and registers": (lambda: timm_vit(reg_tokens=4), (32, 32), 5),
    "none": (lambda: timm_vit(**AVERAGE), (32, 32), 0),
    "registers": (lambda: timm_vit(reg_tokens=4, **AVERAGE), (32, 32), 4),
    "class and distillation": (distilled, (32, 32), 2),
    "rectangle": (lambda: timm_vit(img_size=(32, 64)), (32, 64), 1),
    "trap": (lambda: timm_vit(img_size=(8, 24)), (8, 24), 1),
    "trap in a square": (
        lambda: timm_vit(img_size=24, patch_size=(24, 8)), (24, 24), 1),
}  # fmt: skip
GRIDS = {"rectangle": (4, 8), "trap": (1, 3), "trap in a square": (1, 3)}


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_by_what_the_library_says(name: str) -> None:
    build, size, prefix = TOKENS[name]
    layout = found(build(), "blocks.0", size)
    assert read(layout) == ("tokens", prefix, GRIDS.get(name, (4, 4)))
    assert f"num_prefix_tokens = {prefix}" in layout.source
    assert layout.certain


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_by_the_probe_alone(name: str) -> None:
    build, size, prefix = TOKENS[name]
    model: Any = build()
    layout = found(Strange(Function(model.forward_features)), "run", size)
    assert read(layout) == ("tokens", prefix, GRIDS.get(name, (4, 4)))
    assert layout.source.startswith("probe: ")
    assert layout.certain


def test_nine_tokens_are_not_a_square_of_three() -> None:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    config = Dinov2WithRegistersConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=16,
        patch_size=8, num_register_tokens=4,
    )  # fmt: skip
    layout = found(Dinov2WithRegistersModel(config).eval(), "encoder.layer.1", (16, 16))
    assert read(layout) == ("tokens", 5, (2, 2))
    assert "num_register_tokens = 4" in layout.source


@pytest.mark.parametrize("registers", [0, 3])
@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("layer", [0, 2])
def test_tokens_of_a_model_of_nobody(registers: int, width: int, layer: int) -> None:
    model = small_vit(registers=registers, width=width).eval()
    layout = found(model, f"layers.{layer}", (16, width))
    assert read(layout) == ("tokens", 1 + registers, (4, width // 4))


# ---- case 25: maps


def swin() -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return SwinTransformer(  # type: ignore[no-any-return]
        img_size=32, patch_size=4, window_size=4, embed_dim=8, depths=(1, 1),
        num_heads=(1, 2), num_classes=2,
    ).eval()  # fmt: skip


def convnext() -> nn.Module:
    from timm.models.convnext import ConvNeXt

    return ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 16, 16), num_classes=2).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("build", "split", "kind", "source"),
    [
        (swin, "layers.0", "nhwc", "timm: output_fmt = NHWC"),
        (convnext, "stages.0", "nchw", "probe: "),
        (convnext, "stages.0.blocks.0.mlp", "nhwc", "probe: "),
        (convnext, "stages.0.blocks.0.mlp.fc1", "nhwc", "Linear: channels last"),
        (convnext, "stages.0.blocks.0.conv_dw", "nchw", "Conv2d: channels first"),
    ],
)
def test_maps_of_eight_by_eight_by_eight(
    build: Callable[[], nn.Module], split: str, kind: str, source: str
) -> None:
    layout = found(build(), split)
    assert (layout.kind, layout.grid) == (kind, (8, 8))
    assert layout.source.startswith(source)
    assert layout.certain


def test_channels_last_by_the_probe_alone() -> None:
    model: Any = swin()
    layout = found(
        Strange(Function(lambda x: model.layers[0](model.patch_embed(x)))), "run"
    )
    assert read(layout) == ("nhwc", 0, (8, 8))
    assert layout.source.startswith("probe: ")


def test_tokens_of_swin_have_none_before_them() -> None:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2],
        window_size=4,
    )  # fmt: skip
    layout = found(SwinModel(config).eval(), "encoder.layers.1")
    assert read(layout) == ("tokens", 0, (4, 4))
    assert layout.source.startswith("transformers: config of swin")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x: x.mean((2, 3), keepdim=True), "nchw"),
        (lambda x: x.mean((2, 3))[:, None, None], "nhwc"),
    ],
)
def test_a_map_of_one_position(make: Callable[[Tensor], Tensor], kind: str) -> None:
    assert read(found(Strange(Function(make)), "run")) == (kind, 0, (1, 1))


def test_a_vector_has_no_grid() -> None:
    layout = found(Strange(Function(lambda x: x.flatten(1))), "run")
    assert read(layout) == ("vector", 0, None)
    assert in_words(layout) == "vector"


# ---- what the user says, and what nothing says


def mixed(*shape: int) -> nn.Module:
    """Every value depends on every pixel: no place is left to be seen."""
    generator = torch.Generator().manual_seed(0)
    size = int(torch.tensor(shape).prod())
    weights = torch.randn(3072, size, generator=generator)
    return Strange(Function(lambda x: (x.flatten(1) @ weights).reshape(-1, *shape)))


def test_a_map_that_shows_nothing_asks_for_its_layout() -> None:
    with pytest.raises(ConfigError, match="2 possible readings") as error:
        found(mixed(8, 8, 8), "run")
    assert "Pass Split('run', layout=...)" in error.value.hint
    layout = found(mixed(8, 8, 8), Split("run", layout="nhwc"))
    assert read(layout) == ("nhwc", 0, (8, 8))
    assert layout.source == "given: layout='nhwc'"


def test_tokens_that_show_nothing_ask_for_what_is_missing() -> None:
    model = mixed(9, 8)  # 5 before 2×2, or none before 3×3?
    with pytest.raises(ConfigError, match="possible readings") as error:
        found(model, "run")
    assert "prefix_tokens= and grid=" in error.value.hint
    with pytest.raises(ConfigError, match="possible readings") as error:
        found(mixed(7, 8), Split("run", prefix_tokens=0))
    assert "Pass Split('run', grid=" in error.value.hint
    layout = found(model, Split("run", prefix_tokens=5, grid=(2, 2)))
    assert read(layout) == ("tokens", 5, (2, 2))
    assert found(model, Split("run", grid=(2, 2))).prefix_tokens == 5


def test_a_shape_that_speaks_for_itself_is_marked_as_a_guess() -> None:
    layout = found(mixed(17, 8), "run")
    assert read(layout) == ("tokens", 1, (4, 4))
    assert not layout.certain
    assert "guessed from the shape" in layout.source
    [finding] = about_layout(layout, "run")
    assert finding.severity == "warning"
    assert "tokens, 1 before a grid of 4×4" in finding.text
    told = found(mixed(17, 8), Split("run", prefix_tokens=1, grid=(4, 4)))
    assert list(about_layout(told, "run")) == []


@pytest.mark.parametrize(
    "split",
    [
        Split("blocks.0", prefix_tokens=1, grid=(3, 3)),
        Split("blocks.0", prefix_tokens=17),
        Split("blocks.0", layout="nchw"),
        Split("blocks.0", grid=(5, 5)),
    ],
)
def test_what_was_said_has_to_fit(split: Split) -> None:
    with pytest.raises(ConfigError, match=r"fits the shape \(1, 17, 32\), got given"):
        found(timm_vit(), split)


def test_what_was_said_counts_before_what_the_library_says() -> None:
    layout = found(timm_vit(), Split("blocks.0", prefix_tokens=5, grid=(3, 4)))
    assert read(layout) == ("tokens", 5, (3, 4))
    partly = found(timm_vit(), Split("blocks.0", prefix_tokens=1))
    assert read(partly) == ("tokens", 1, (4, 4))
    assert partly.source.startswith("given: prefix_tokens=1; timm: ")


def test_more_tokens_before_the_patches_than_usual() -> None:
    model = small_vit(registers=20).eval()
    layout = found(model, Split("layers.1", prefix_tokens=21), (16, 16))
    assert read(layout) == ("tokens", 21, (4, 4))


def test_tokens_on_the_last_axis_are_refused() -> None:
    conv = nn.Conv2d(3, 12, 8, 8)
    with pytest.raises(ConfigError, match="tokens on the last axis"):
        found(Strange(Function(lambda x: conv(x).flatten(2))), "run")


def test_axes_that_nobody_can_read() -> None:
    with pytest.raises(ConfigError, match="two, three or four axes"):
        found(mixed(2, 2, 2, 2), "run")
    with pytest.raises(ConfigError, match=r"first axis is the 10 image"):
        found(Strange(Function(lambda x: x.flatten(0, 1).flatten(1))), "run")


def test_latents_are_no_grid() -> None:
    """Learned queries look at the whole image: no place answers more than others."""
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    patch, queries = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.randn(1, 7, 16))

    def run(x: Tensor) -> Tensor:
        tokens = patch(x).flatten(2).transpose(1, 2)
        asked = queries.expand(len(x), -1, -1)
        return attention(asked, tokens, tokens)[0]  # type: ignore[no-any-return]

    with pytest.raises(ConfigError, match="possible readings"):
        found(Strange(Function(run)), "run")


# ---- the probe itself


def test_the_probe_changes_nine_squares_of_one_image() -> None:
    image = torch.rand(3, 16, 32)
    shown = probe_images(image)
    assert shown.shape == (10, 3, 16, 32)
    assert torch.equal(shown[0], image)
    changed = (shown[1:] != image).any(1).flatten(1).sum(1)
    assert changed.tolist() == [4] * 9  # two pixels square
    low, high = image.min(), image.max()
    assert low - 1e-6 <= shown.min()
    assert shown.max() <= high + 1e-6
    assert (probe_images(torch.zeros(1, 8, 8))[1:] > 0).any()


def test_the_probe_scores_what_it_foretells() -> None:
    shown = probe_images(torch.rand(3, 32, 32))
    pooled = torch.nn.functional.avg_pool2d(shown, 8)
    right, wrong = (
        FeatureLayout("nchw", grid=(4, 4)),
        FeatureLayout("nhwc", grid=(3, 4)),
    )
    first, second = scores(pooled, (32, 32), [right, wrong])
    assert first > 0.95
    assert second < 0.2
    assert scores(pooled * float("nan"), (32, 32), [right]) == [0.0]
    assert scores(pooled, (32, 32), [FeatureLayout("vector")]) == [0.0]


def test_layouts_in_words() -> None:
    assert in_words(FeatureLayout("nchw", grid=(2, 3))) == "nchw, a grid of 2×3"
    assert "no grid" in in_words(FeatureLayout("tokens"))


def test_more_tokens_than_pixels_are_no_grid() -> None:
    sent = torch.rand(10, 5000, 4)
    layout = layout_of(nn.Identity(), Split("x"), sent, size=(8, 8), path="x")
    assert read(layout) == ("tokens", 0, None)
