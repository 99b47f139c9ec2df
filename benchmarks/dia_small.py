"""Small reproduction of Scheliga 2023: DIA, WIIG and IG on the authors' victims.

    python benchmarks/dia_small.py --data FOLDER --out FOLDER [--cells NAME ...]

One process, one thread; each finished run is a file, so that an interrupted run goes
on where it was. Start several processes on other cells to use more cores.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from privaudit._pixels import Normalisation
from privaudit.attacks.dropout_inversion import DropoutInversion
from privaudit.attacks.inverting_gradients import InvertingGradients
from privaudit.attacks.well_informed import WellInformed
from privaudit.config import Budget
from privaudit.exposure import GradientExposure
from privaudit.metrics import Mse, Psnr, Ssim
from privaudit.types import AttackerKnowledge, Batch, Target
from tests.models.dia import ViT, lenet, mlp

NORMAL = {
    "mnist": ((0.13066,), (0.30811,)),
    "cifar10": ((0.49147, 0.48226, 0.44677), (0.24703, 0.24349, 0.26159)),
}
ATTACKS = {
    "dia": DropoutInversion(),
    "dia-analytical": DropoutInversion(initialisation="analytical"),
    "wiig": WellInformed(),
    "ig": InvertingGradients(),
}


@dataclass(frozen=True)
class Cell:
    """One model, data set, dropout rate; how many victims."""

    model: str
    data: str
    p: float
    victims: int

    @property
    def name(self) -> str:
        """As users write it."""
        return f"{self.model}-{self.data}-{self.p:g}"


CELLS = [
    Cell("mlp", "cifar10", 0.25, 4),
    Cell("mlp", "cifar10", 0.5, 4),
    Cell("vit", "cifar10", 0.25, 1),
    Cell("lenet", "cifar10", 0.5, 2),
    Cell("lenet", "mnist", 0.5, 2),
    Cell("lenet", "cifar10", 0.25, 1),
    Cell("lenet", "cifar10", 0.75, 1),
]


def main() -> None:
    """Run what is asked for; print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", nargs="*", default=[c.name for c in CELLS])
    parser.add_argument("--attacks", nargs="*", default=["dia", "wiig", "ig"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for cell in CELLS:
        if cell.name in options.cells:
            for victim in range(cell.victims):
                for attack in options.attacks:
                    _run(cell, victim, attack, options)


def _run(cell: Cell, victim: int, attack: str, options: argparse.Namespace) -> None:
    place = options.out / f"{cell.name}-{attack}-{victim}.json"
    if place.exists():
        return
    record = attack_victim(cell, victim, attack, options.data)
    place.write_text(json.dumps(record))
    print(json.dumps(record), flush=True)


def attack_victim(cell: Cell, victim: int, attack: str, data: Path) -> dict[str, Any]:
    """One attack on one victim, from a model drawn with the victim's number."""
    batch = _victim(cell, victim, data)
    mean, std = NORMAL[cell.data]
    if batch.images.shape[1] == 3 and len(mean) == 1:
        mean, std = mean * 3, std * 3
    exposure = GradientExposure(Normalisation(mean, std))
    torch.manual_seed(victim)
    model = _model(cell, batch)
    step = exposure.observe(model, batch, seed=victim)
    target = Target(model, exposure, AttackerKnowledge(batch.labels, step.tape))
    started = time.perf_counter()
    found = ATTACKS[attack].run(
        target,
        step.observation,
        budget=Budget(),
        generator=torch.Generator().manual_seed(victim),
    )
    seconds = time.perf_counter() - started
    if found.images is None or found.search is None:
        return {"cell": asdict(cell), "attack": attack, "state": found.state}
    return {
        "cell": asdict(cell),
        "attack": attack,
        "victim": victim,
        "state": found.state,
        "ssim": Ssim().score(batch.images, found.images)[0].value,
        "psnr": Psnr().score(batch.images, found.images)[0].value,
        "mse": Mse().score(batch.images, found.images)[0].value,
        "loss_start": found.search.loss_start,
        "loss_final": found.search.loss_final,
        "unknowns": found.search.unknowns,
        "iterations": found.search.iterations,
        "seconds": seconds,
    }


def _victim(cell: Cell, victim: int, data: Path) -> Batch:
    with np.load(data / f"dia_victims_{cell.data}.npz") as store:
        images, labels = store["images"], store["labels"]
    image = torch.from_numpy(images[victim : victim + 1]).permute(0, 3, 1, 2) / 255
    if cell.model == "lenet":
        image = image.expand(-1, 3, -1, -1)
    return Batch(image, torch.from_numpy(labels[victim : victim + 1]).long())


def _model(cell: Cell, batch: Batch) -> torch.nn.Module:
    channels, size = batch.images.shape[1], batch.images.shape[-1]
    build = {"mlp": mlp, "vit": ViT, "lenet": lenet}[cell.model]
    return build(cell.p, channels=channels, size=size)


if __name__ == "__main__":
    main()
