"""torchvision: ResNets, vision transformers, Swin, and everything convolutional."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from privaudit.adapters.base import (
    IMAGENET,
    Adapter,
    LayoutHint,
    ModelFacts,
    class_names,
    layer_points,
)

if TYPE_CHECKING:
    from torch import nn


class Torchvision(Adapter):
    """Models of ``torchvision.models``."""

    name: ClassVar[str] = "torchvision"
    package: ClassVar[str] = "torchvision"

    def facts(self, model: nn.Module) -> ModelFacts | None:
        """Normalisation of the ImageNet weights, patches, usual cuts."""
        if not type(model).__module__.startswith("torchvision.models."):
            return None
        known = ModelFacts(
            f"torchvision {type(model).__name__}",
            *IMAGENET,
            "torchvision's ImageNet weights",
        )
        vit: Any = model
        if _is_vit(model):
            points = layer_points(
                "encoder.dropout",
                "encoder.layers.encoder_layer_{}",
                len(vit.encoder.layers),
            )
            patch = (int(vit.patch_size),) * 2
            return replace(known, patch=patch, prefix_tokens=1, split_points=points)
        return replace(known, split_points=_stages(model))

    def hint(self, model: nn.Module, path: str) -> LayoutHint | None:
        """One class token before the patches; Swin keeps channels last."""
        vit: Any = model
        if _is_vit(model):
            side = int(vit.patch_size)
            return LayoutHint(
                ("tokens",), (1, 0), ((side, side),),
                f"torchvision: one class token, patch_size = {side}",
            )  # fmt: skip
        if "SwinTransformer" in class_names(model):
            parts = path.split(".")
            if parts[0] == "features" and len(parts) <= 3:
                return LayoutHint(("nhwc",), source="torchvision Swin: channels last")
        return None


def _is_vit(model: nn.Module) -> bool:
    return {"VisionTransformer"} <= class_names(model) and hasattr(model, "conv_proj")


def _stages(model: nn.Module) -> dict[str, str]:
    """Stem and stages of a ResNet (Lei 2025, code); none for others."""
    names = {n for n, _ in model.named_children()}
    if not {"maxpool", "layer1", "layer4"} <= names:
        return {}
    return {"block 1": "maxpool"} | {f"block {i + 1}": f"layer{i}" for i in range(1, 5)}
