"""timm: what its models say of themselves (num_prefix_tokens, output_fmt, config)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from privaudit.adapters.base import (
    Adapter,
    LayoutHint,
    ModelFacts,
    layer_points,
    pair_of,
)

if TYPE_CHECKING:
    from torch import nn


class Timm(Adapter):
    """Models of ``timm.models``."""

    name: ClassVar[str] = "timm"
    package: ClassVar[str] = "timm"

    def facts(self, model: nn.Module) -> ModelFacts | None:
        """Normalisation from ``pretrained_cfg``, patches, usual cuts."""
        config = getattr(model, "pretrained_cfg", None) or {}
        prefix, patch = _prefix(model), _patch(model)
        points = _points(model)
        if not config and not points:
            return None
        return ModelFacts(
            f"timm {type(model).__name__}",
            mean=tuple(config["mean"]) if config.get("mean") else None,
            std=tuple(config["std"]) if config.get("std") else None,
            normalisation_source="timm pretrained_cfg" if config.get("mean") else "",
            patch=patch,
            prefix_tokens=prefix,
            split_points=points,
        )

    def hint(self, model: nn.Module, path: str) -> LayoutHint | None:
        """``num_prefix_tokens`` for transformers, ``output_fmt`` for stages."""
        prefix, patch = _prefix(model), _patch(model)
        if prefix is not None and patch is not None:
            return LayoutHint(
                ("tokens",), tuple(dict.fromkeys((prefix, 0))), (patch,),
                f"timm: num_prefix_tokens = {prefix}, patch {patch[0]}×{patch[1]}",
            )  # fmt: skip
        if str(getattr(model, "output_fmt", "")).endswith("NHWC"):
            return LayoutHint(("nhwc",), source="timm: output_fmt = NHWC")
        return None


def _prefix(model: nn.Module) -> int | None:
    found = getattr(model, "num_prefix_tokens", None)
    return found if isinstance(found, int) else None


def _patch(model: nn.Module) -> tuple[int, int] | None:
    embed: Any = getattr(model, "patch_embed", None)
    return pair_of(getattr(embed, "patch_size", None))


def _points(model: nn.Module) -> dict[str, str]:
    children = dict(model.named_children())
    blocks: Any = children.get("blocks")
    if _prefix(model) is not None and blocks is not None and len(blocks):
        first = next((n for n in ("norm_pre", "pos_drop") if n in children), "")
        return layer_points(first, "blocks.{}", len(blocks))
    if {"layer1", "layer4", "maxpool"} <= set(children):
        stages = {f"block {i + 1}": f"layer{i}" for i in range(1, 5)}
        return {"block 1": "maxpool"} | stages
    name = next((n for n in ("stages", "layers") if n in children), "")
    count = len(list(children[name].children())) if name else 0
    return {f"stage {i + 1}": f"{name}.{i}" for i in range(count)}
