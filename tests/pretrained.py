"""Stand-ins for published weights: random ones, in files named like the real ones."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from privaudit.metrics.dino import BACKBONE
from privaudit.metrics.lpips import BACKBONES, Net

_BUILDERS: dict[Net, str] = {
    "alex": "alexnet",
    "vgg": "vgg16",
    "squeeze": "squeezenet1_1",
}


def backbone_file(net: Net, folder: Path) -> Path:
    """The convolutions of a fresh ImageNet network, as torchvision stores them."""
    import torchvision

    model = getattr(torchvision.models, _BUILDERS[net])(weights=None)
    state = model.state_dict()
    kept = {k: v for k, v in state.items() if k.startswith("features.")}
    return _saved(kept, folder / BACKBONES[net].names[0])


def dino_file(state: dict[str, Tensor], folder: Path) -> Path:
    return _saved(state, folder / BACKBONE.names[0])


def _saved(state: dict[str, Tensor], file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, file)
    return file
