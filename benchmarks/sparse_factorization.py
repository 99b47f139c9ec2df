"""Whole batches through dropout: ``sparse_factorization`` on the DIA MLP.

    python benchmarks/sparse_factorization.py --data FOLDER --out FILE.json

Every cell with several random models; masks and, but for p = 0, labels unknown.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from privaudit._align import assignment
from privaudit.attacks import SparseFactorization
from privaudit.config import Budget
from privaudit.exposure import GradientExposure
from privaudit.metrics import Ssim
from privaudit.types import AttackerKnowledge, Batch, Target
from tests.models.dia import mlp
from tests.reference.cells import NORMALISATION


@dataclass(frozen=True)
class Cell:
    """One kind of model, dropout rate and batch size."""

    kind: str
    p: float
    batch: int


CELLS = [
    *(Cell("no bias", p, b) for p in (0.25, 0.5, 0.75) for b in (4, 8, 16)),
    *(Cell("no bias, labels known", 0.0, b) for b in (4, 8, 16)),
    *(Cell("bias", p, b) for p in (0.25, 0.5, 0.75) for b in (4, 8, 16)),
    *(Cell("ReLU, bias", 0.0, b) for b in (8, 16)),
]
STRETCH = [
    Cell("no bias", p, b) for p, b in ((0.25, 32), (0.5, 32), (0.1, 8), (0.1, 16))
]


def main() -> None:
    """Run all cells; print one line each and write them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=["cifar10", "mnist"])
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--stretch", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for data in options.sets:
        for cell in CELLS + (STRETCH if options.stretch else []):
            row = run_cell(data, cell, options.models, options.seconds, options.data)
            rows.append(row)
            print(json.dumps(row), flush=True)
            options.out.write_text(json.dumps(rows, indent=1))


def run_cell(
    data: str, cell: Cell, models: int, seconds: float, folder: Path
) -> dict[str, Any]:
    """All models of a cell, each with a batch of its own."""
    scores: list[float] = []
    states, times = [], []
    for number in range(models):
        batch = victims(folder, data, cell.batch, number)
        model = build(cell, batch, number)
        exposure = GradientExposure(NORMALISATION[data])
        step = exposure.observe(model, batch, seed=number)
        known = batch.labels if "labels known" in cell.kind else None
        target = Target(model, exposure, AttackerKnowledge(known))
        started = time.perf_counter()
        found = SparseFactorization().run(
            target,
            step.observation,
            budget=Budget(seconds=seconds),
            generator=torch.Generator().manual_seed(number),
        )
        times.append(time.perf_counter() - started)
        states.append(found.state)
        if found.images is None:
            scores += [0.0] * cell.batch
            continue
        order = assignment(batch.images, found.images)
        each = Ssim().score(batch.images, found.images[order])
        scores += [s.value if s.value is not None else float("nan") for s in each]
    return asdict(cell) | {
        "data": data,
        "models": models,
        "states": states,
        "worst_ssim": min(scores),
        "mean_ssim": sum(scores) / len(scores),
        "seconds": sorted(times),
    }


def victims(folder: Path, data: str, count: int, number: int) -> Batch:
    """``count`` of the 64 victims, others for every number."""
    with np.load(folder / f"dia_victims_{data}.npz") as store:
        images, labels = store["images"], store["labels"]
    rows = (np.arange(count) + number * count) % len(images)
    pixels = torch.from_numpy(images[rows]).permute(0, 3, 1, 2) / 255
    return Batch(pixels, torch.from_numpy(labels[rows]).long())


def build(cell: Cell, batch: Batch, seed: int) -> nn.Module:
    """The DIA MLP, with biases or ReLU where the cell says so."""
    torch.manual_seed(seed)
    channels, size = batch.images.shape[1], batch.images.shape[-1]
    if cell.kind.startswith("no bias"):
        return mlp(cell.p, channels=channels, size=size)
    act = nn.ReLU if "ReLU" in cell.kind else nn.GELU
    layers: list[nn.Module] = [nn.Flatten()]
    width = channels * size * size
    for _ in range(3):
        layers += [nn.Linear(width, 512), act(), nn.Dropout(cell.p)]
        width = 512
    return nn.Sequential(*layers, nn.Linear(width, 10))


if __name__ == "__main__":
    main()
