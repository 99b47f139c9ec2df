"""A small ViT and a small CNN for 32x32 photographs, with trained weights beside them.

``examples/train_split_clients.py`` trains them and states how; the weights are stored
in half precision. Both take images normalised with :data:`MEAN` and :data:`STD`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEAN = (0.49147, 0.48226, 0.44677)
STD = (0.24703, 0.24349, 0.26159)
SIDE, CLASSES = 32, 10
CLASS_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FOLDER = Path(__file__).parent


class Attention(nn.Module):
    """Self-attention over all tokens, (batch, tokens, dim) → the same."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class SplitViT(nn.Module):
    """Patches of 4x4, a class token, six blocks ``blocks.0`` to ``blocks.5``."""

    def __init__(self, dim: int = 128, depth: int = 6, heads: int = 4) -> None:
        super().__init__()
        patch = 4
        self.patch_embed = nn.Conv2d(3, dim, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        tokens = (SIDE // patch) ** 2 + 1
        self.pos_embed = nn.Parameter(torch.randn(1, tokens, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads, 2 * dim) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], 1)
        tokens = self.blocks(tokens + self.pos_embed)
        return self.head(self.norm(tokens)[:, 0])  # type: ignore[no-any-return]


class Stage(nn.Module):
    """A residual block that halves the picture."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential(
            nn.Conv2d(before, after, 1, stride=2, bias=False), nn.BatchNorm2d(after)
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class SplitCNN(nn.Module):
    """A stem at 32x32, then stages of 64x16x16, 128x8x8 and 256x4x4."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        )
        self.stages = nn.Sequential(*(Stage(a, b) for a, b in pairwise(widths)))
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {"vit": SplitViT, "cnn": SplitCNN}


def weights_file(name: str) -> Path:
    """Where the trained weights of ``vit`` or ``cnn`` are."""
    return FOLDER / f"split_{name}.safetensors"


def trained(name: str) -> nn.Module:
    """``vit`` or ``cnn`` with its trained weights, float32, in eval mode."""
    from safetensors.torch import load_file

    with torch.random.fork_rng():
        model = MODELS[name]()
    state = {
        k: v.float() if v.is_floating_point() else v
        for k, v in load_file(weights_file(name)).items()
    }
    model.load_state_dict(state)
    return model.eval()
