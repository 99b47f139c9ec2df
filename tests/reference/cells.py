"""What the reference tests and the benchmark share: victims, cells, one attack each.

A cell is one row of the tables of Scheliga 2023: data set, model, dropout rate. Every
victim is a client of its own (batch 1), its masks unknown to the attacker.
"""

from __future__ import annotations

import os
import statistics
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit._runner import Client, Clock, run
from privaudit.attacks import ClosedForm
from privaudit.config import Budget
from privaudit.exposure import GradientExposure
from privaudit.metrics import Ssim
from privaudit.types import AttackerKnowledge, Batch, Target
from tests.models.dia import ViT, mlp

ROOT = Path(__file__).parents[2]
RATES = (0.0, 0.25, 0.5, 0.75)
MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "vit": ViT}
NORMALISATION = {
    "mnist": Normalisation((0.13066,), (0.30811,)),
    "cifar10": Normalisation((0.49147, 0.48226, 0.44677), (0.24703, 0.24349, 0.26159)),
}
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def shared_data() -> Path | None:
    """The folder with the victims' images, which are not part of the package."""
    given = os.environ.get("PRIVAUDIT_SHARED")
    folder = Path(given) if given else ROOT.parent / "shared"
    data = folder / "data"
    return data if data.is_dir() else None


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    data: str
    model: str
    p: float

    @property
    def name(self) -> str:
        return f"{self.model} {self.data} p={self.p:g}"

    def build(self) -> nn.Module:
        """The cell's model, drawn from a seed of its own; the world's stays."""
        channels, size = (1, 28) if self.data == "mnist" else (3, 32)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return MODELS[self.model](self.p, channels=channels, size=size)


CELLS = [Cell(d, m, p) for d in NORMALISATION for m in MODELS for p in RATES]


@dataclass(frozen=True)
class CellResult:
    """What came back, victim by victim."""

    name: str
    ssim: list[float]
    seconds: list[float]
    states: dict[str, int]
    forms: dict[str, int]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.ssim)

    @property
    def worst(self) -> float:
        return min(self.ssim)

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)


def victims(folder: Path, data: str, count: int) -> tuple[Tensor, Tensor]:
    """Images in [0, 1], (count, C, H, W), and labels, of the authors' own victims."""
    with np.load(folder / f"dia_victims_{data}.npz") as stored:
        images = torch.from_numpy(stored["images"][:count])
        labels = torch.from_numpy(stored["labels"][:count]).long()
    return images.permute(0, 3, 1, 2).float() / 255, labels


def photographs(folder: Path, count: int) -> Tensor:
    """Natural photographs of 224 × 224 in [0, 1], for evaluation only."""
    from PIL import Image

    with zipfile.ZipFile(folder / "natural_224_eval.zip") as archive:
        names = sorted(n for n in archive.namelist() if n.lower().endswith("g"))[:count]
        pictures = []
        for name in names:
            with archive.open(name) as file, Image.open(file) as image:
                pictures.append(np.asarray(image.convert("RGB")))
    stacked = torch.from_numpy(np.stack(pictures))
    return stacked.permute(0, 3, 1, 2).float() / 255


def attack_all(
    name: str,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    normalisation: Normalisation,
) -> CellResult:
    """``closed_form`` against one client per image, each claim checked."""
    exposure = GradientExposure(normalisation)
    target = Target(model, exposure, AttackerKnowledge())
    scores, seconds, ended, forms = [], [], [], []
    for number in range(len(images)):
        batch = Batch(images[number : number + 1], labels[number : number + 1])
        step = exposure.observe(model, batch, seed=number)
        client = Client(batch, step, range(number, number + 1))
        ran = run(
            ClosedForm(), target, [client],
            labels_known=True, clock=Clock(Budget()), seed=number,
        )  # fmt: skip
        (outcome,) = ran.outcomes
        guess = torch.zeros_like(batch.images)
        guess = guess if outcome.images is None else outcome.images.detach()
        (score,) = Ssim().score(batch.images, guess)
        scores.append(float("nan") if score.value is None else score.value)
        seconds.append(ran.seconds)
        ended.append(outcome.state)
        forms.append(outcome.form)
    return CellResult(name, scores, seconds, dict(Counter(ended)), dict(Counter(forms)))


def attack_cell(cell: Cell, folder: Path, count: int) -> CellResult:
    """The first ``count`` victims of one cell."""
    images, labels = victims(folder, cell.data, count)
    normalisation = NORMALISATION[cell.data]
    return attack_all(cell.name, cell.build(), images, labels, normalisation)


def vit_b_16(*, zero_head: bool = False) -> nn.Module:
    """torchvision's ViT-B/16 with dropout, as it is before training starts."""
    from torchvision.models import vit_b_16 as build

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = build(dropout=0.1, attention_dropout=0.1)
        if not zero_head:
            head: nn.Linear = model.heads.head  # type: ignore[union-attr, assignment]
            nn.init.trunc_normal_(head.weight, std=0.02)
    return model
