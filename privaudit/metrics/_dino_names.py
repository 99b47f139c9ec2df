"""Names of a ViT's tensors in other libraries → those of torchvision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LAYER = r"encoder.layers.encoder_layer_\1."
_FUSED = [
    (r"^cls_token$", "class_token"),
    (r"^pos_embed$", "encoder.pos_embedding"),
    (r"^patch_embed\.proj\.", "conv_proj."),
    (r"^blocks\.(\d+)\.norm([12])\.", _LAYER + r"ln_\2."),
    (r"^blocks\.(\d+)\.attn\.qkv\.", _LAYER + "self_attention.in_proj_"),
    (r"^blocks\.(\d+)\.attn\.proj\.", _LAYER + "self_attention.out_proj."),
    (r"^blocks\.(\d+)\.mlp\.fc1\.", _LAYER + "mlp.0."),
    (r"^blocks\.(\d+)\.mlp\.fc2\.", _LAYER + "mlp.3."),
]
"""DINO's own file, and timm's."""
_SEPARATE = [
    (r"^(?:vit\.)?embeddings\.cls_token$", "cls_token"),
    (r"^(?:vit\.)?embeddings\.position_embeddings$", "pos_embed"),
    (r"^(?:vit\.)?embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^(?:vit\.)?encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"layernorm_before\.", "norm1."),
    (r"layernorm_after\.", "norm2."),
    (r"attention\.output\.dense\.", "attn.proj."),
    (r"intermediate\.dense\.", "mlp.fc1."),
    (r"(\d)\.output\.dense\.", r"\1.mlp.fc2."),
]
"""Those of transformers, to DINO's own; query, key and value are joined apart."""


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under torchvision's names; foreign ones keep theirs."""
    own = _joined({_by(_SEPARATE, name): value for name, value in state.items()})
    return {_by(_FUSED, name): value for name, value in own.items()}


def _by(rules: list[tuple[str, str]], name: str) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _joined(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``query``, ``key``, ``value`` of transformers → one ``qkv``."""
    joined = dict(state)
    for name in state:
        if ".attention.attention.query." in name:
            parts = [name.replace("query", part) for part in ("query", "key", "value")]
            if all(part in state for part in parts):
                whole = name.replace("attention.attention.query", "attn.qkv")
                joined[whole] = torch.cat([joined.pop(part) for part in parts])
    return joined
