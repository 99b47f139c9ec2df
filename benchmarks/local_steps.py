"""Five local steps of four images: simulate the steps, or take the sum for a gradient.

    python benchmarks/local_steps.py --data FOLDER --out FOLDER [--models mlp lenet]

The clients are federated-averaging clients on the victims of Scheliga 2023 (CIFAR-10).
Both attacks are inverting_gradients on the same weight difference; one knows that there
were several steps. One process, one thread; each finished run is a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from privaudit._align import assignment
from privaudit._pixels import Normalisation
from privaudit.attacks._minimise import Schedule
from privaudit.attacks.inverting_gradients import InvertingGradients
from privaudit.config import Budget
from privaudit.exposure import GradientExposure, LocalSteps
from privaudit.metrics import Ssim
from privaudit.types import AttackerKnowledge, Batch, Target
from tests.models.dia import lenet, mlp

MEAN, STD = (0.49147, 0.48226, 0.44677), (0.24703, 0.24349, 0.26159)
MODELS = {"mlp": mlp, "lenet": lenet}


def main() -> None:
    """Run what is asked for; print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        for kind in ("simulated", "one step"):
            _run(name, kind, options)


def _run(name: str, kind: str, options: argparse.Namespace) -> None:
    local = f"{options.steps}x{options.batch_size}-lr{options.lr:g}"
    place = options.out / f"{name}-{local}-{kind.replace(' ', '-')}.json"
    if place.exists():
        return
    record = attacked(name, kind, options)
    place.write_text(json.dumps(record))
    print(json.dumps({"model": name, "attack": kind} | record), flush=True)


def attacked(name: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """One attack on one client; SSIM over its images in the order that fits best."""
    batch = _victims(options.data, options.steps * options.batch_size)
    local = LocalSteps(options.steps, options.lr, momentum=options.momentum)
    exposure = GradientExposure(Normalisation(MEAN, STD), local=local)
    torch.manual_seed(0)
    model = MODELS[name](0.0)
    step = exposure.observe(model, batch, seed=0)
    seen = exposure if kind == "simulated" else replace(exposure, local=None)
    target = Target(model, seen, AttackerKnowledge(batch.labels))
    attack = InvertingGradients(schedule=Schedule(iterations=options.iterations))
    truth = attack.loss_at(target, step.observation, batch, step.tape)
    cpu = time.process_time()
    found = attack.run(
        target,
        step.observation,
        budget=Budget(),
        generator=torch.Generator().manual_seed(0),
    )
    cpu = time.process_time() - cpu
    if found.images is None or found.search is None:
        return {"state": found.state, "reason": found.reason}
    images = found.images[assignment(batch.images, found.images)]
    scores = [s.value or 0.0 for s in Ssim().score(batch.images, images)]
    return {
        "ssim_mean": sum(scores) / len(scores),
        "ssim_worst": max(scores),
        "loss_truth": truth,
        "loss_start": found.search.loss_start,
        "loss_final": found.search.loss_final,
        "iterations": found.search.iterations,
        "cpu_seconds": cpu,
    }


def _victims(data: Path, count: int) -> Batch:
    with np.load(data / "dia_victims_cifar10.npz") as store:
        images, labels = store["images"][:count], store["labels"][:count]
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    return Batch(pixels, torch.from_numpy(labels).long())


if __name__ == "__main__":
    main()
