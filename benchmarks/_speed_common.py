"""What the benchmarks of speed share: victims, clocks, an attack at its own pace."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit._progress import Tick, watched_by
from privaudit.attacks import DropoutInversion
from privaudit.attacks._minimise import Schedule
from privaudit.attacks._replay import START
from privaudit.config import Budget
from privaudit.exposure import GradientExposure
from privaudit.types import AttackerKnowledge, Batch, Target

CIFAR = Normalisation((0.49147, 0.48226, 0.44677), (0.24703, 0.24349, 0.26159))
RATE = 0.25
Build = Callable[[], nn.Module]


@dataclass(frozen=True, eq=False)
class Victims:
    """Clients of one model."""

    model: nn.Module
    exposure: GradientExposure
    batches: list[Batch]
    steps: list[Any]


def victims_of(
    build: Build, count: int, *, batch: int = 1, device: str, data: Path | None
) -> Victims:
    """``count`` clients with ``batch`` images each, on one random model."""
    images = _images(count * batch, data).to(device)
    labels = (torch.arange(count * batch) % 10).to(device)
    torch.manual_seed(0)
    model = build().to(device)
    exposure = GradientExposure(CIFAR)
    batches = [
        Batch(images[v : v + batch], labels[v : v + batch])
        for v in range(0, count * batch, batch)
    ]
    steps = [exposure.observe(model, b, seed=v) for v, b in enumerate(batches)]
    return Victims(model, exposure, batches, steps)


def _images(count: int, folder: Path | None) -> Tensor:
    """As many as asked for; from the start again where there are fewer."""
    if folder is None:
        images = shipped_images(min(count, 8), (3, 32, 32))
    else:
        with np.load(folder / "dia_victims_cifar10.npz") as store:
            images = torch.from_numpy(store["images"]).permute(0, 3, 1, 2) / 255
    return images[torch.arange(count) % len(images)]


@dataclass(frozen=True)
class Pace:
    """How fast an attack ran.

    Attributes:
        before: Victim-iterations a second before the trace.
        after: The same once iterations are replayed, or compiled.
        trace_s: Seconds of the wall that tracing, and compiling, took.
    """

    before: float
    after: float
    trace_s: float


def attack_pace(
    victims: Victims, iterations: int, *, device: str, compiled: bool = False
) -> Pace:
    """Dropout inversion as an audit runs it, timed at its own ticks.

    Set-up is not counted. ``iterations``: how many are timed before the trace, and
    after it; the run is given enough more that the trace pays, and is then ended.
    """
    schedule = Schedule(iterations=10**6, compiled=compiled, goal=-1, give_up=10**6)
    attack = DropoutInversion(schedule=schedule)
    stop = START + 10 + max(10, -(-iterations // 10) * 10)
    times: dict[int, float] = {}
    wall: dict[int, float] = {}

    def watch(tick: Tick) -> None:
        times[tick.done] = now(device)
        wall[tick.done] = time.perf_counter()
        if tick.done >= stop:
            raise KeyboardInterrupt

    with watched_by(watch):
        _run(attack, victims)
    count = len(victims.batches)
    before = (START - 20) / (times[START - 10] - times[10])
    after = (stop - START - 10) / (times[stop] - times[START + 10])
    # In these twenty: the trace, one plain iteration as its check, and the rest.
    pair = wall[START + 10] - wall[START - 10]
    trace = max(0.0, pair - 11 / before - 9 / after)
    return Pace(count * before, count * after, trace)


def _run(attack: DropoutInversion, victims: Victims) -> None:
    memory: dict[str, object] = {}
    targets = [
        Target(victims.model, victims.exposure, AttackerKnowledge(b.labels), memory)
        for b in victims.batches
    ]
    generators = [torch.Generator().manual_seed(v) for v in range(len(targets))]
    observations = [s.observation for s in victims.steps]
    if len(targets) == 1:
        attack.run(
            targets[0], observations[0], budget=Budget(), generator=generators[0]
        )
        return
    found = attack.run_many(
        targets, observations, budget=Budget(), generators=generators
    )
    if found is None:
        raise SystemExit("these victims do not run together")


def steps_per_s(step: Callable[[], None], iterations: int, device: str) -> float:
    """How often a second ``step`` runs, after one that is not counted."""
    step()
    started = now(device)
    for _ in range(iterations):
        step()
    return iterations / max(1e-9, now(device) - started)


def gemm_peak(device: str, runs: int = 5) -> float:
    """GFLOP/s of a 2048³ product in float32: the best of some runs."""
    a, b = torch.randn(2, 2048, 2048).to(device)
    return max(
        2 * 2048**3 / 1e9 * steps_per_s(lambda: _discard(a @ b), 1, device)
        for _ in range(runs)
    )


def _discard(_: Tensor) -> None:
    """For its time only."""


def flops(victims: Victims) -> float:
    """Floating-point operations of matrix products in one victim-iteration."""
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    for iterations in (1, 3):
        attack = DropoutInversion(schedule=Schedule(iterations=iterations))
        with FlopCounterMode(display=False) as counter:
            _run(attack, victims)
        counts.append(counter.get_total_flops())
    return float(counts[1] - counts[0]) / 2 / len(victims.batches)


def now(device: str) -> float:
    """Seconds of this process on the CPU; of the wall once a GPU has finished."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def peak_mib(device: str) -> float:
    """The most memory so far: of this process, or on the GPU."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated() / 2**20


def middle(values: Sequence[float]) -> float:
    """Median, to four digits."""
    return float(f"{sorted(values)[len(values) // 2]:.4g}")
