"""How fast gradient matching runs, against a plain loop that forms every gradient.

    python benchmarks/speed.py --out speed.json [--data FOLDER] [--device cuda]

Dropout inversion with random starts, batch 1, p = .25, 32×32, one thread: iterations a
second of one victim in the plain loop, in the factored loop, and of many victims at
once (victims × iterations a second). Median of some runs, all in this process, plain
and fast in turn, so that a busy machine slows both. ``--quick`` is a dry run.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import DropoutInversion
from privaudit.attacks._minimise import Objective, Schedule, Unknown, minimise
from privaudit.config import Budget
from privaudit.distances import Cosine
from privaudit.exposure import GradientExposure
from privaudit.exposure.predict import observed_as, predict
from privaudit.priors import TotalVariation
from privaudit.types import AttackerKnowledge, Batch, Target
from tests.models.dia import ViT, lenet, mlp

CIFAR = Normalisation((0.49147, 0.48226, 0.44677), (0.24703, 0.24349, 0.26159))
RATE = 0.25
CELLS: tuple[tuple[str, Callable[..., nn.Module], int, int], ...] = (
    ("mlp", mlp, 1, 120),
    ("mlp", mlp, 4, 60),
    ("mlp", mlp, 16, 40),
    ("mlp", mlp, 64, 30),
    ("lenet", lenet, 1, 120),
    ("lenet", lenet, 16, 40),
    ("vit", ViT, 1, 20),
    ("vit", ViT, 16, 5),
)


@dataclass(frozen=True, eq=False)
class Victims:
    """Clients of one model."""

    model: nn.Module
    exposure: GradientExposure
    batches: list[Batch]
    steps: list[Any]


def main() -> None:
    """Measure every cell; print a line each, write them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder of the DIA authors' victims")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, build, count, iterations in CELLS:
        iterations = 2 if options.quick else iterations
        victims = _victims(build, count, options)
        fast, plain = [], []
        for _ in range(1 if options.quick else options.runs):
            plain.append(_plain(victims, max(2, iterations // 2), options.device))
            fast.append(_fast(victims, iterations, options.device))
        row = {
            "model": name,
            "victims": count,
            "device": options.device,
            "plain_iterations_per_s": statistics.median(plain),
            "fast_iterations_per_s": statistics.median(fast),
            "ratio": statistics.median(f / p for f, p in zip(fast, plain, strict=True)),
            "peak_memory_mib": _peak(options.device),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
        options.out.write_text(json.dumps(rows, indent=1))


def _victims(
    build: Callable[..., nn.Module], count: int, options: argparse.Namespace
) -> Victims:
    images = _images(count, options.data).to(options.device)
    torch.manual_seed(0)
    model = build(RATE, channels=3, size=32).to(options.device)
    exposure = GradientExposure(CIFAR)
    batches, steps = [], []
    for v in range(count):
        label = torch.tensor([v % 10], device=options.device)
        batches.append(Batch(images[v : v + 1], label))
        steps.append(exposure.observe(model, batches[-1], seed=v))
    return Victims(model, exposure, batches, steps)


def _images(count: int, folder: Path | None) -> Tensor:
    if folder is None:
        return shipped_images(count, (3, 32, 32))
    with np.load(folder / "dia_victims_cifar10.npz") as store:
        return torch.from_numpy(store["images"][:count]).permute(0, 3, 1, 2) / 255


def _plain(victims: Victims, iterations: int, device: str) -> float:
    """One victim, every gradient formed, nothing shared: the usual implementation."""
    batch, step, model = victims.batches[0], victims.steps[0], victims.model
    exposure, tv = victims.exposure, TotalVariation()
    inputs = torch.randn(batch.images.shape).to(device).requires_grad_()
    masks = [
        torch.rand(d.value.shape).lt(1 - RATE).float().to(device).requires_grad_()
        for d in step.tape
    ]
    seen: list[Any] = []

    def objective() -> Objective:
        guess = predict(
            exposure,
            model,
            Batch(CIFAR.invert(inputs), batch.labels),
            step.tape.with_values(masks),
            factor=False,
        )
        if not seen:
            seen.append(observed_as(guess, step.observation.gradients))
        matching = Cosine().measure(guess, seen[0])
        rates = torch.stack([(RATE - (1 - m.mean())).abs() for m in masks]).sum()
        return Objective(matching, matching + 1e-5 * tv.penalty(inputs) + 1e-4 * rates)

    unknowns = [Unknown([inputs], lambda v: v.clamp(-2, 2.3), sign=True)]
    unknowns += [Unknown([m], lambda v: v.clamp(0, 1)) for m in masks]
    minimise(objective, unknowns, schedule=Schedule(iterations=1), budget=Budget())
    started = _now(device)
    minimise(
        objective, unknowns, schedule=Schedule(iterations=iterations), budget=Budget()
    )
    return iterations / (_now(device) - started)


def _fast(victims: Victims, iterations: int, device: str) -> float:
    """As an audit runs it; set-up (factors of what was observed) not counted."""
    both = []
    for count in (1, iterations + 1):
        attack = DropoutInversion(schedule=Schedule(iterations=count))
        memory: dict[str, object] = {}
        targets = [
            Target(victims.model, victims.exposure, AttackerKnowledge(b.labels), memory)
            for b in victims.batches
        ]
        generators = [torch.Generator().manual_seed(v) for v in range(len(targets))]
        observations = [s.observation for s in victims.steps]
        started = _now(device)
        if len(targets) == 1:
            attack.run(
                targets[0], observations[0], budget=Budget(), generator=generators[0]
            )
        else:
            done = attack.run_many(
                targets, observations, budget=Budget(), generators=generators
            )
            if done is None:
                raise SystemExit("these victims do not run together")
        both.append(_now(device) - started)
    return len(victims.batches) * iterations / max(1e-9, both[1] - both[0])


def _now(device: str) -> float:
    """Seconds of this process on the CPU; of the wall once a GPU has finished."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _peak(device: str) -> float:
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated() / 2**20


if __name__ == "__main__":
    main()
