"""transformers: vision models, by what their ``config`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from privaudit.adapters.base import (
    HALF,
    IMAGENET,
    OPENAI_CLIP,
    Adapter,
    LayoutHint,
    ModelFacts,
    layer_points,
    pair_of,
)

if TYPE_CHECKING:
    from torch import nn

_TOKENS = {
    "vit": 1, "vit_msn": 1, "ijepa": 0, "beit": 1, "deit": 2, "dinov2": 1,
    "dinov2_with_registers": 1, "dinov3_vit": 1, "clip_vision_model": 1,
    "siglip_vision_model": 0, "swin": 0, "swinv2": 0,
}  # fmt: skip
"""Class and distillation tokens by ``model_type``; registers are in the config."""
_PIXELS = {
    "vit": HALF, "vit_msn": IMAGENET, "beit": HALF, "deit": IMAGENET,
    "dinov2": IMAGENET, "dinov2_with_registers": IMAGENET, "dinov3_vit": IMAGENET,
    "clip_vision_model": OPENAI_CLIP, "siglip_vision_model": HALF, "swin": IMAGENET,
    "swinv2": IMAGENET,
}  # fmt: skip
"""Mean and std that the image processors of these models use."""
_STAGES = ("swin", "swinv2")


class Transformers(Adapter):
    """Vision models of ``transformers``."""

    name: ClassVar[str] = "transformers"
    package: ClassVar[str] = "transformers"

    def facts(self, model: nn.Module) -> ModelFacts | None:
        """Usual normalisation, patches, and the cuts of Lei 2025."""
        config = _config(model)
        if config is None:
            return None
        mean, std = _PIXELS.get(config.model_type, (None, None))
        return ModelFacts(
            f"transformers {type(model).__name__}", mean, std,
            f"image processor of {config.model_type}" if mean else "",
            patch=pair_of(config.patch_size), prefix_tokens=_prefix(config),
            split_points=_points(model, config),
        )  # fmt: skip

    def hint(self, model: nn.Module, path: str) -> LayoutHint | None:
        """Class, distillation and register tokens; Swin has none, and merges."""
        config = _config(model)
        patch = None if config is None else pair_of(config.patch_size)
        if config is None or patch is None:
            return None
        kind, prefix = config.model_type, _prefix(config)
        registers = getattr(config, "num_register_tokens", None)
        told = f"transformers: config of {kind}, patch_size = {config.patch_size}, "
        told += f"{prefix} token(s) before the patches"
        if registers is not None:
            told += f" (num_register_tokens = {registers})"
        merged = [2**i for i in range(len(config.depths))] if kind in _STAGES else [1]
        strides = tuple((patch[0] * m, patch[1] * m) for m in merged)
        return LayoutHint(("tokens",), tuple({prefix: 0, 0: 0}), strides, told)

    def image_part(self, model: nn.Module) -> str | None:
        """``vision_model`` of a whole CLIP and its kin."""
        names = {n for n, _ in model.named_children()}
        return "vision_model" if {"vision_model", "text_model"} <= names else None


def _config(model: nn.Module) -> Any:
    """The config of a vision model that we know; None for others."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in _TOKENS:
        return None
    return config if hasattr(config, "patch_size") else None


def _prefix(config: Any) -> int:
    registers = getattr(config, "num_register_tokens", 0) or 0
    return int(_TOKENS[config.model_type] + registers)


def _points(model: nn.Module, config: Any) -> dict[str, str]:
    """Names moved between releases; the list of layers is found by its length."""
    from torch import nn

    stages = config.model_type in _STAGES
    count = len(config.depths) if stages else config.num_hidden_layers
    names = [
        n for n, m in model.named_modules()
        if isinstance(m, nn.ModuleList) and len(m) == count
        and n.rpartition(".")[2] in ("layer", "layers")
    ]  # fmt: skip
    if not names:
        return {}
    if stages:
        return {f"stage {i + 1}": f"{names[0]}.{i}" for i in range(count)}
    known = dict(model.named_modules())
    before = [
        n for n in known
        if n.rpartition(".")[2] in ("embeddings", "pre_layrnorm", "pre_layernorm")
    ]  # fmt: skip
    return layer_points(before[-1] if before else "", names[0] + ".{}", count)
