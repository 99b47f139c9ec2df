"""Pairs of a model and a setting with a known answer. What an audit must not get wrong.

Leaky ones are read off exactly by a named form, through their dropout. In the others no
image reaches the gradient: there is nothing to be found, and that is no safety either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from tests.models.dia import ViT, mlp

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Known:
    """One pair.

    Attributes:
        name: For the reader.
        build: Makes the model; the global generator is seeded around it.
        word: The verdict, or None for "neither leaks nor no leak found".
        form: The form that reads the image off; empty where none can.
        finding: Code of a finding that must be there; empty for none.
        mean: Normalisation.
        std: Normalisation.
        shape: (channels, height, width).
    """

    name: str
    build: Callable[[], nn.Module]
    word: str | None
    form: str = ""
    finding: str = ""
    mean: float | None = 0.45
    std: float | None = 0.25
    shape: Shape = (3, 32, 32)

    def model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.build()

    def sample(self, count: int = 1) -> tuple[Tensor, Tensor]:
        images = shipped_images(max(count, 2), self.shape)[:count]
        return images, torch.arange(count) % 10


def dead_first_layer() -> nn.Module:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10)
    )
    nn.init.constant_(model[1].bias, -1000.0)  # type: ignore[arg-type]
    return model


class NothingPasses(nn.Module):
    """Dropout with p = 1 on the input: every image becomes black."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(1.0)
        self.net = mlp(0.25, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.drop(x))  # type: ignore[no-any-return]


class Saturated(nn.Module):
    """Surer of class 0 than float32 can tell from certainty."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(0.25, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        sure = torch.zeros(10)
        sure[0] = 500.0
        return self.net(x) + sure  # type: ignore[no-any-return]


BANK = [
    Known(
        "linear layer with bias, dropout .5",
        lambda: mlp(0.5, bias=True),
        "leaks",
        form="first linear layer with bias",
        finding="dropout-no-protection",
    ),
    Known(
        "linear layer without bias, dropout .75",
        lambda: mlp(0.75),
        "leaks",
        form="first linear layer without bias",
        finding="dropout-no-protection",
    ),
    Known(
        "position embedding, dropout .25",
        lambda: ViT(0.25),
        "leaks",
        form="patch embedding with learned position embedding",
        finding="dropout-no-protection",
    ),
    Known("dead first layer", dead_first_layer, None, finding="dead-layer"),
    Known("dropout 1 on the input", NothingPasses, None, finding="drops-everything"),
    Known("saturated softmax", Saturated, None, finding="zero-gradient"),
]
