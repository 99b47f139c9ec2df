"""Likeness of what two images show."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from privaudit._weights import Found, Weights, locate, read_state
from privaudit.metrics._dino_names import renamed
from privaudit.metrics._pretrained import (
    fill,
    grey,
    three_channels,
    why_unavailable,
    wrong_channels,
)
from privaudit.metrics.base import Metric

if TYPE_CHECKING:
    from torch import Tensor, nn

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BACKBONE = Weights(
    "DINO ViT-S/16",
    ("dino_deitsmall16_pretrain.pth", "dino-vits16.safetensors"),
    "https://dl.fbaipublicfiles.com/dino/dino_deitsmall16_pretrain/"
    "dino_deitsmall16_pretrain.pth",
    repos=("facebook/dino-vits16", "timm/vit_small_patch16_224.dino"),
)
"""Without a digest: none is published. DINO's own, timm's and transformers' names of
tensors are all understood."""


class Dino(Metric):
    """How alike two images are in content: 1 the same, about 0 unrelated.

    Cosine similarity of the class tokens of a DINO ViT-S/16, *before* the final layer
    norm. Images are resized to 224x224 (bilinear, antialiased). The weights do not come
    with any package (see ``docs/how-to/air-gapped.md``).

    The ``dino`` column of Lei 2025 is another number: their code reads transformers'
    ``pooler_output``, a layer with random weights.

    Args:
        weights: Folder to look into first; None takes ``PRIVAUDIT_WEIGHTS``.

    Example:
        >>> import torch
        >>> radar = torch.zeros(1, 2, 16, 16)
        >>> Dino().score(radar, radar)[0].note
        'dino is not defined for 2 channels'

    Source: Caron 2021; as a score: Ruiz 2023; differs in the token before the norm.
    """

    name: ClassVar[str] = "dino"
    title: ClassVar[str] = "DINO similarity"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    source: ClassVar[str] = "Caron 2021"

    weights: str | None = None

    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """See :class:`~privaudit.metrics.base.Metric`."""
        network = self.network()
        a, b = (_tokens(network, images) for images in (truth, guess))
        return F.cosine_similarity(a.double(), b.double(), dim=1).clamp(-1, 1)

    def undefined(self, truth: Tensor) -> str:
        """Neither grey nor colour."""
        return wrong_channels(self.name, truth)

    def unavailable(self) -> str:
        """Where to put which file, if it is not there."""
        return why_unavailable(self.name, self.network)

    def note(self, truth: Tensor) -> str:
        """Says when images were resized, or grey was repeated."""
        height, width = truth.shape[-2:]
        size = f"resized from {height}x{width} to {SIDE}x{SIDE}"
        resized = "" if (height, width) == (SIDE, SIDE) else size
        return "; ".join(filter(None, [grey(truth), resized]))

    def network(self) -> nn.Module:
        """Images (batch, 3, 224, 224) → (batch, 384), in eval mode; built once.

        Raises:
            ConfigError: The weights are not there, or are not what they should be.
        """
        return _build(locate(BACKBONE, self.weights))


def _tokens(network: nn.Module, images: Tensor) -> Tensor:
    """One image at a time, so that no score depends on its neighbours."""
    mean, std = (images.new_tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    tokens = []
    with torch.no_grad():
        for image in three_channels(images):
            sized = F.interpolate(
                image[None], (SIDE, SIDE), mode="bilinear", antialias=True
            )
            tokens.append(network((sized - mean) / std)[0])
    return torch.stack(tokens)


@lru_cache(maxsize=1)
def _build(file: Found) -> nn.Module:
    from torch.nn import Identity
    from torchvision.models import VisionTransformer

    state = renamed(read_state(file))
    with torch.random.fork_rng(devices=[]):
        network = VisionTransformer(SIDE, 16, 12, 6, 384, 1536)
    network.heads = Identity()
    network.encoder.ln = Identity()
    fill(network, state, file)
    return network.eval()  # type: ignore[no-any-return]
