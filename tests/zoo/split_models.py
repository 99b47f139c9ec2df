"""Architectures in tiny configurations, each cut at three places.

What is expected at a cut was written down from the architecture, not from the tool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from privaudit.types import FeatureLayout

TV = torchvision.models


@dataclass(frozen=True)
class Place:
    """One cut with what is right there."""

    split: str
    shape: tuple[int, ...]
    layout: FeatureLayout


def nchw(split: str, channels: int, rows: int, columns: int | None = None) -> Place:
    grid = (rows, columns or rows)
    return Place(split, (channels, *grid), FeatureLayout("nchw", grid=grid))


def nhwc(split: str, channels: int, rows: int, columns: int | None = None) -> Place:
    grid = (rows, columns or rows)
    return Place(split, (*grid, channels), FeatureLayout("nhwc", grid=grid))


def tokens(
    split: str, channels: int, prefix: int, rows: int, columns: int | None = None
) -> Place:
    grid = (rows, columns or rows)
    count = prefix + grid[0] * grid[1]
    return Place(split, (count, channels), FeatureLayout("tokens", prefix, grid))


def vector(split: str, channels: int) -> Place:
    return Place(split, (channels,), FeatureLayout("vector"))


@dataclass(frozen=True)
class Entry:
    """A model, the (height, width) of its images, and its cuts."""

    build: Callable[[], nn.Module]
    size: tuple[int, int]
    places: tuple[Place, ...]


def _tv_vit() -> nn.Module:
    return TV.VisionTransformer(  # type: ignore[no-any-return]
        image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=16,
        mlp_dim=32, num_classes=5,
    )  # fmt: skip


def _tv_swin() -> nn.Module:
    return TV.SwinTransformer(  # type: ignore[no-any-return]
        patch_size=[4, 4], embed_dim=8, depths=[2, 1], num_heads=[1, 2],
        window_size=[4, 4], num_classes=5,
    )  # fmt: skip


def _tv_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig

    return TV.ConvNeXt(  # type: ignore[no-any-return]
        [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=5
    )


def _tv_resnet() -> nn.Module:
    from torchvision.models.resnet import Bottleneck

    return TV.ResNet(Bottleneck, [1, 1, 1, 1], num_classes=5)  # type: ignore[no-any-return]


def _tv_vgg() -> nn.Module:
    from torchvision.models.vgg import VGG, cfgs, make_layers

    model: nn.Module = VGG(make_layers(cfgs["A"]), num_classes=5, init_weights=False)
    model.classifier = nn.Linear(512 * 7 * 7, 5)  # its own has 120 million weights
    return model


def _tv_densenet() -> nn.Module:
    return TV.DenseNet(8, (2, 2), 16, num_classes=5)  # type: ignore[no-any-return]


def _tv_maxvit() -> nn.Module:
    return TV.MaxVit(  # type: ignore[no-any-return]
        (32, 32), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=5
    )


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=5, **settings)  # type: ignore[no-any-return]

    return build


VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2}


def _hf(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**settings)
        return getattr(transformers, model)(made)  # type: ignore[no-any-return]

    return build


HF = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 2,
}  # fmt: skip


def _clip_vit() -> nn.Module:
    from open_clip.transformer import VisionTransformer

    return VisionTransformer(  # type: ignore[no-any-return]
        image_size=32, patch_size=8, width=32, layers=3, heads=2, mlp_ratio=2.0,
        output_dim=8,
    )  # fmt: skip


def _clip_resnet() -> nn.Module:
    from open_clip.modified_resnet import ModifiedResNet

    return ModifiedResNet(  # type: ignore[no-any-return]
        (1, 1, 1, 1), output_dim=8, heads=4, image_size=64, width=16
    )


class LeNet(nn.Module):
    """Three convolutions that follow one another, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2),
            nn.Sigmoid(), nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid(),
        )  # fmt: skip
        self.fc = nn.Linear(768, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).flatten(1))  # type: ignore[no-any-return]


class Rows(nn.Module):
    """A recurrent layer over the rows of the image, read from top to bottom."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(96, 24), nn.LayerNorm(24)
        self.lstm = nn.LSTM(24, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.into(x.transpose(1, 2).flatten(2)))
        return self.head(self.lstm(rows)[0].mean(1))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """torch's own encoder on patches, with two tokens of its own before them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 8, 8)
        self.first = nn.Parameter(torch.randn(1, 2, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        joined = torch.cat([self.first.expand(len(x), -1, -1), patches], 1)
        return self.head(self.encoder(joined)[:, 0])  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Flattens first: everything after that is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3072, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU()
        )
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.layers(x.flatten(1)), 0.5, self.training))  # type: ignore[no-any-return]


SMALL = (32, 32)
ZOO: dict[str, Entry] = {
    "lenet": Entry(LeNet, SMALL, (
        nchw("body.0", 12, 16), nchw("body.3", 12, 8), nchw("body", 12, 8))),
    "rows": Entry(Rows, SMALL, (
        tokens("into", 24, 0, 32, 1), tokens("norm", 24, 0, 32, 1),
        vector("head", 5))),
    "torch encoder": Entry(Encoder, SMALL, (
        nchw("patch", 16, 4), tokens("encoder.layers.0", 16, 2, 4),
        tokens("encoder", 16, 2, 4))),
    "mlp": Entry(Mlp, SMALL, (
        vector("layers.0", 32), vector("layers.1", 32), vector("layers", 32))),
    "torchvision resnet18": Entry(lambda: TV.resnet18(num_classes=5), (64, 64), (
        nchw("relu", 64, 32), nchw("layer2", 128, 8), nchw("layer4", 512, 2))),
    "torchvision bottleneck": Entry(_tv_resnet, (64, 96), (
        nchw("maxpool", 64, 16, 24), nchw("layer2.0", 512, 8, 12),
        nchw("layer3", 1024, 4, 6))),
    "torchvision vgg": Entry(_tv_vgg, SMALL, (
        nchw("features.1", 64, 32), nchw("features.5", 128, 8),
        nchw("features.15", 512, 2))),
    "torchvision mobilenet v2": Entry(
        lambda: TV.mobilenet_v2(num_classes=5, width_mult=0.25), (64, 64), (
            nchw("features.0", 8, 32), nchw("features.3", 8, 16),
            nchw("features.6", 8, 8))),
    "torchvision mobilenet v3": Entry(
        lambda: TV.mobilenet_v3_small(num_classes=5), (64, 64), (
            nchw("features.0", 16, 32), nchw("features.3", 24, 8),
            nchw("features.5", 40, 4))),
    "torchvision efficientnet": Entry(
        lambda: TV.efficientnet_b0(num_classes=5), (64, 64), (
            nchw("features.1", 16, 32), nchw("features.3", 40, 8),
            nchw("features.5", 112, 4))),
    "torchvision densenet": Entry(_tv_densenet, (64, 64), (
        nchw("features.pool0", 16, 16), nchw("features.denseblock1", 32, 16),
        nchw("features.denseblock2", 32, 8))),
    "torchvision squeezenet": Entry(
        lambda: TV.squeezenet1_1(num_classes=5), (64, 64), (
            nchw("features.0", 64, 31), nchw("features.3", 128, 15),
            nchw("features.6", 256, 7))),
    "torchvision shufflenet": Entry(
        lambda: TV.shufflenet_v2_x0_5(num_classes=5), (64, 64), (
            nchw("conv1", 24, 32), nchw("stage2", 48, 8), nchw("stage3", 96, 4))),
    "torchvision regnet": Entry(
        lambda: TV.regnet_x_400mf(num_classes=5), (64, 64), (
            nchw("stem", 32, 32), nchw("trunk_output.block1", 32, 16),
            nchw("trunk_output.block2", 64, 8))),
    "torchvision googlenet": Entry(
        lambda: TV.googlenet(num_classes=5, init_weights=False, aux_logits=False),
        (64, 64), (
            nchw("conv1", 64, 32), nchw("inception3a", 256, 8),
            nchw("inception4a", 512, 4))),
    "torchvision convnext": Entry(_tv_convnext, SMALL, (
        nchw("features.0", 8, 8), nchw("features.1", 8, 8),
        nchw("features.3", 16, 4))),
    "torchvision maxvit": Entry(_tv_maxvit, SMALL, (
        nchw("stem", 8, 16), nchw("blocks.0", 8, 8), nchw("blocks.1", 16, 4))),
    "torchvision vit": Entry(_tv_vit, SMALL, (
        nchw("conv_proj", 16, 4), tokens("encoder.dropout", 16, 1, 4),
        tokens("encoder.layers.encoder_layer_1", 16, 1, 4))),
    "torchvision swin": Entry(_tv_swin, SMALL, (
        nhwc("features.0", 8, 8), nhwc("features.1", 8, 8),
        nhwc("features.3", 16, 4))),
    "timm vit": Entry(_timm("vit_tiny_patch16_224", **VIT), SMALL, (
        tokens("patch_embed", 32, 0, 4), tokens("norm_pre", 32, 1, 4),
        tokens("blocks.1", 32, 1, 4))),
    "timm vit with registers": Entry(
        _timm("vit_tiny_patch16_224", reg_tokens=4, **VIT), SMALL, (
            tokens("patch_embed", 32, 0, 4), tokens("blocks.0", 32, 5, 4),
            tokens("blocks.2", 32, 5, 4))),
    "timm vit without class token": Entry(
        _timm("vit_tiny_patch16_224", class_token=False, global_pool="avg", **VIT),
        SMALL, (
            tokens("patch_embed", 32, 0, 4), tokens("blocks.0", 32, 0, 4),
            tokens("blocks.2", 32, 0, 4))),
    "timm deit distilled": Entry(
        _timm("deit_tiny_distilled_patch16_224", **VIT), SMALL, (
            tokens("pos_drop", 32, 2, 4), tokens("blocks.0", 32, 2, 4),
            tokens("norm", 32, 2, 4))),
    "timm beit": Entry(_timm("beit_base_patch16_224", **VIT), SMALL, (
        tokens("patch_embed", 32, 0, 4), tokens("blocks.0", 32, 1, 4),
        tokens("blocks.2", 32, 1, 4))),
    "timm eva": Entry(_timm("eva02_tiny_patch14_224", **VIT), SMALL, (
        tokens("patch_embed", 32, 0, 4), tokens("blocks.0", 32, 1, 4),
        tokens("blocks.2", 32, 1, 4))),
    "timm mixer": Entry(_timm("mixer_s32_224", img_size=96), (96, 96), (
        tokens("stem", 512, 0, 3), tokens("blocks.0", 512, 0, 3),
        tokens("blocks.4", 512, 0, 3))),
    "timm swin": Entry(
        _timm("swin_tiny_patch4_window7_224", img_size=32, patch_size=4, window_size=4,
              embed_dim=8, depths=(1, 1), num_heads=(1, 2)), SMALL, (
            nhwc("patch_embed", 8, 8), nhwc("layers.0", 8, 8),
            nhwc("layers.1", 16, 4))),
    "timm convnext": Entry(
        _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 16)), SMALL, (
            nchw("stem", 8, 8), nchw("stages.0", 8, 8), nchw("stages.2", 16, 2))),
    "timm resnet": Entry(_timm("resnet10t"), (64, 64), (
        nchw("act1", 64, 32), nchw("layer1", 64, 16), nchw("layer3", 256, 4))),
    "timm poolformer": Entry(_timm("poolformer_s12"), (64, 64), (
        nchw("stem", 64, 16), nchw("stages.0", 64, 16), nchw("stages.1", 128, 8))),
    "timm pvt v2": Entry(
        _timm("pvt_v2_b0", depths=(1, 1, 1, 1)), (64, 64), (
            nhwc("patch_embed", 32, 16), nchw("stages.0", 32, 16),
            nchw("stages.1", 64, 8))),
    "transformers vit": Entry(_hf("ViTForImageClassification", "ViTConfig", **HF),
        SMALL, (
            tokens("vit.embeddings.patch_embeddings", 32, 0, 4),
            tokens("vit.embeddings", 32, 1, 4), tokens("vit.layernorm", 32, 1, 4))),
    "transformers deit": Entry(_hf("DeiTModel", "DeiTConfig", **HF), SMALL, (
        nchw("embeddings.patch_embeddings.projection", 32, 4),
        tokens("embeddings", 32, 2, 4), tokens("layernorm", 32, 2, 4))),
    "transformers dinov2": Entry(_hf("Dinov2Model", "Dinov2Config", **HF), SMALL, (
        tokens("embeddings", 32, 1, 4), tokens("encoder.layer.0", 32, 1, 4),
        tokens("encoder.layer.2", 32, 1, 4))),
    "transformers dinov2 with registers": Entry(
        _hf("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig",
            num_register_tokens=4, **{**HF, "image_size": 16}), (16, 16), (
            tokens("embeddings", 32, 5, 2), tokens("encoder.layer.0", 32, 5, 2),
            tokens("encoder.layer.2", 32, 5, 2))),
    "transformers clip": Entry(
        _hf("CLIPVisionModel", "CLIPVisionConfig", intermediate_size=64, **HF),
        SMALL, (
            tokens("embeddings", 32, 1, 4), tokens("pre_layrnorm", 32, 1, 4),
            tokens("encoder.layers.1", 32, 1, 4))),
    "transformers siglip": Entry(
        _hf("SiglipVisionModel", "SiglipVisionConfig", intermediate_size=64, **HF),
        SMALL, (
            tokens("embeddings", 32, 0, 4), tokens("encoder.layers.0", 32, 0, 4),
            tokens("encoder.layers.2", 32, 0, 4))),
    "transformers swin": Entry(
        _hf("SwinModel", "SwinConfig", image_size=32, patch_size=4, embed_dim=8,
            depths=[1, 1], num_heads=[1, 2], window_size=4), SMALL, (
            tokens("embeddings", 8, 0, 8), tokens("encoder.layers.0.blocks.0", 8, 0, 8),
            tokens("encoder.layers.1", 16, 0, 4))),
    "transformers convnext": Entry(
        _hf("ConvNextModel", "ConvNextConfig", hidden_sizes=[8, 16], depths=[1, 1],
            num_stages=2), SMALL, (
            nchw("embeddings", 8, 8), nchw("encoder.stages.0", 8, 8),
            nchw("encoder.stages.1", 16, 4))),
    "open_clip vit": Entry(_clip_vit, SMALL, (
        nchw("conv1", 32, 4), tokens("ln_pre", 32, 1, 4),
        tokens("transformer.resblocks.1", 32, 1, 4))),
    "open_clip resnet": Entry(_clip_resnet, (64, 64), (
        nchw("avgpool", 16, 16), nchw("layer1", 64, 16), nchw("layer3", 256, 4))),
}  # fmt: skip
