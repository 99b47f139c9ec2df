"""open_clip: the image encoders of CLIP models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from privaudit.adapters.base import (
    OPENAI_CLIP,
    Adapter,
    LayoutHint,
    ModelFacts,
    class_names,
    layer_points,
    pair_of,
)

if TYPE_CHECKING:
    from torch import nn


class OpenClip(Adapter):
    """``visual`` of the models of ``open_clip``."""

    name: ClassVar[str] = "open_clip"
    package: ClassVar[str] = "open_clip"

    def facts(self, model: nn.Module) -> ModelFacts | None:
        """CLIP's normalisation, patches, and where Lei 2025 cuts (code).

        For transformers layer 0 is behind the pre-LayerNorm; for ResNets block 1 is
        the stem with its average pool, 2 to 5 are ``layer1`` to ``layer4``.
        """
        part: Any = model
        own = getattr(part, "image_mean", None), getattr(part, "image_std", None)
        if _is_vit(model):
            count = len(part.transformer.resblocks)
            points = layer_points("ln_pre", "transformer.resblocks.{}", count)
        elif "ModifiedResNet" in class_names(model):
            points = {f"block {i + 1}": f"layer{i}" for i in range(1, 5)}
            points = {"block 1": "avgpool"} | points
        else:
            return None
        mean, std = own
        if mean is None or std is None:
            mean, std = OPENAI_CLIP
        return ModelFacts(
            f"open_clip {type(model).__name__}", tuple(mean), tuple(std),
            "open_clip: image_mean, image_std",
            patch=pair_of(getattr(part, "patch_size", None)),
            prefix_tokens=1 if _is_vit(model) else None,
            split_points=points,
        )  # fmt: skip

    def hint(self, model: nn.Module, path: str) -> LayoutHint | None:
        """One class token before the patches."""
        patch = pair_of(getattr(model, "patch_size", None))
        if not _is_vit(model) or patch is None:
            return None
        return LayoutHint(
            ("tokens",), (1, 0), (patch,),
            f"open_clip: one class token, patch_size = {patch[0]}×{patch[1]}",
        )  # fmt: skip

    def image_part(self, model: nn.Module) -> str | None:
        """``visual`` of a whole CLIP."""
        names = {n for n, _ in model.named_children()}
        text = {"transformer", "text", "token_embedding"} & names
        return "visual" if "visual" in names and text else None


def _is_vit(model: nn.Module) -> bool:
    return "VisionTransformer" in class_names(model) and hasattr(model, "ln_pre")
