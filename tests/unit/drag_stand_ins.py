"""``reproduce drag`` with tiny clients in the place of published ones.

As a script: the command line with them, to be killed and started again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from privaudit._pixels import Normalisation
from privaudit.attacks import InverseNetwork, _inverse_file
from privaudit.attacks._inverse_training import train
from privaudit.config import Budget
from privaudit.study import drag_clients
from privaudit.study.drag_clients import ClientModel
from privaudit.study.drag_unit import opened_place
from privaudit.types import FeatureTarget
from tests.contract.feature_cases import photographs, small_cnn
from tests.models.vit import small_vit

SIDE = 16
VIT, CNN = "CLIP-ViT-B/16", "CLIP-RN50"
_POINTS = {
    VIT: {"Layer 0": "patch", "Layer 3": "layers.0", "Layer 6": "layers.0",
          "Layer 9": "layers.1", "Layer 12": "layers.2"},
    CNN: {f"Block {n}": "1" if n < 3 else "4" for n in range(1, 6)},
}  # fmt: skip


def stand_in(original: Callable[[str], ClientModel]) -> Callable[[str], ClientModel]:
    """Tiny clients for two of the paper's; of the third the weights are missing."""
    known: dict[str, ClientModel] = {}

    def client_model(name: str) -> ClientModel:
        if name not in _POINTS:
            return original(name)
        if name not in known:
            module = small_vit().eval() if name == VIT else small_cnn()
            normal = Normalisation((0.5,), (0.25,))
            known[name] = ClientModel(module, normal, _POINTS[name], SIDE)
        return known[name]

    return client_model


def inverse_network(folder: Path) -> Path:
    """A file for the tiny ViT behind layer 12, hardly trained."""
    client = stand_in(drag_clients.client_model)(VIT)
    place = opened_place(VIT, "Layer 12", client=client, digest="", memory={})
    target = FeatureTarget(client.module, place.exposure, photographs(12))
    attack = InverseNetwork(width=16, layers=1, iterations=5, batch_size=4)
    drawn = torch.Generator().manual_seed(0)
    trained = train(target, attack, budget=Budget(seconds=60), generator=drawn)
    file = folder / "clip-vit-b-16.layer-12.safetensors"
    return _inverse_file.save(file, trained, target, attack.settings(), (3, SIDE, SIDE))


if __name__ == "__main__":
    from privaudit.cli import main

    setattr(drag_clients, "client_model", stand_in(drag_clients.client_model))  # noqa: B010
    sys.argv[0] = "privaudit"
    main()
