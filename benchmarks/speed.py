"""How fast gradient matching runs, against two plain loops that form every gradient.

    python benchmarks/speed.py --out speed.json [--data FOLDER] [--compiled] [--full]

Dropout inversion with random starts, batch 1, p = .25, 32×32, one thread: iterations a
second of one victim in a plain loop (``careful`` and ``usual``, see _speed_plain.py),
and of one or many victims as an audit runs them (victims × iterations a second):
before an iteration is traced, once it is replayed, and, with ``--compiled``, as kernels
of its own. Median of some runs, all in this process and in turn, so that a busy machine
slows all alike; CPU time, but for what compiling takes.

Then: how the time grows with victims, batch, width and tokens, and how many seconds
pass until SSIM .85 and .95. ``--full`` also runs the plain loop on the ViT (minutes).
``--quick`` is a dry run. ``--parts`` picks some of "pace growth quality".
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._speed_common import (
    RATE,
    Pace,
    Victims,
    attack_pace,
    flops,
    gemm_peak,
    middle,
    peak_mib,
    steps_per_s,
    victims_of,
)
from benchmarks._speed_growth import GROWTH
from benchmarks._speed_plain import PlainLoop
from benchmarks._speed_quality import quality
from tests.models.dia import ViT, lenet, mlp

MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "lenet": lenet, "vit": ViT}
CELLS: tuple[tuple[str, int, int], ...] = (
    ("mlp", 1, 200),
    ("mlp", 4, 100),
    ("mlp", 16, 60),
    ("mlp", 64, 40),
    ("lenet", 1, 200),
    ("lenet", 16, 40),
    ("vit", 1, 20),
    ("vit", 16, 10),
)
"""Model, victims at once, iterations that are timed."""
PARTS = ("pace", "growth", "quality")


def main() -> None:
    """Measure every cell; print a line each, write them all."""
    options = parsed()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "gemm_gflop_per_s": gemm_peak(options.device),
    }
    for part in options.parts:
        record[part] = []
        for row in {"pace": paces, "growth": growth, "quality": qualities}[part](
            options
        ):
            record[part].append(row)
            print(json.dumps(row), flush=True)
            options.out.write_text(json.dumps(record, indent=1))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder of the DIA authors' victims")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def paces(options: argparse.Namespace) -> Any:
    """One row a cell."""
    for name, count, iterations in CELLS:
        if name in options.models and not (options.quick and count > 4):
            build = functools.partial(MODELS[name], RATE, channels=3, size=32)
            victims = victims_of(build, count, device=options.device, data=options.data)
            row = {"model": name, "victims": count, "device": options.device}
            yield row | _pace(victims, iterations, options)


def _pace(
    victims: Victims, iterations: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Plain loops and attack in turn; medians, and ratios by name."""
    plain: dict[str, list[float]] = {"careful": [], "usual": []}
    fast: dict[str, list[Pace]] = {"replayed": []}
    if options.compiled:
        fast["compiled"] = []
    few = 10 if options.quick else max(10, iterations // 4)
    for _ in range(1 if options.quick else options.runs):
        careful, usual = PlainLoop(victims, "careful"), PlainLoop(victims, "usual")
        plain["careful"].append(steps_per_s(careful.step, few, options.device))
        plain["usual"].append(steps_per_s(usual.step, few, options.device))
        for way, seen in fast.items():
            seen.append(
                attack_pace(
                    victims,
                    10 if options.quick else iterations,
                    device=options.device,
                    compiled=way == "compiled",
                )
            )
    return _summary(plain, fast, flops(victims), options.device)


def _summary(
    plain: dict[str, list[float]], fast: dict[str, list[Pace]], work: float, device: str
) -> dict[str, Any]:
    row: dict[str, Any] = {
        f"plain_{k}_iterations_per_s": middle(v) for k, v in plain.items()
    }
    rates = {way: [p.after for p in paces] for way, paces in fast.items()}
    rates["traced_never"] = [p.before for p in fast["replayed"]]
    for way, found in rates.items():
        row[f"{way}_victim_iterations_per_s"] = middle(found)
        for kind, base in plain.items():
            row[f"{way}_over_{kind}"] = middle(
                [f / p for f, p in zip(found, base, strict=True)]
            )
    for way, paces in fast.items():
        row[f"{way}_set_up_s"] = [round(p.trace_s, 2) for p in paces]
    peak = gemm_peak(device)
    row["mflop_per_victim_iteration"] = work / 1e6
    row["gemm_gflop_per_s"] = peak
    row["share_of_gemm_peak"] = {
        w: middle(r) * work / 1e9 / peak for w, r in rates.items()
    }
    row["peak_memory_mib_so_far"] = peak_mib(device)
    return row


def growth(options: argparse.Namespace) -> Any:
    """Milliseconds of an iteration along one axis at a time."""
    for case in GROWTH:
        if options.quick and case.victims * case.batch > 4:
            continue
        victims = victims_of(
            case.build,
            case.victims,
            batch=case.batch,
            device=options.device,
            data=options.data,
        )
        pace = attack_pace(
            victims,
            10 if options.quick else case.iterations,
            device=options.device,
            compiled=options.compiled,
        )
        row = {"axis": case.axis, "value": case.value, "model": case.model}
        row["device"] = options.device
        each = {
            k: case.victims / v * 1e3
            for k, v in asdict(pace).items()
            if v and k != "trace_s"
        }
        yield row | {
            f"ms_per_iteration_{k}": float(f"{v:.4g}") for k, v in each.items()
        }


def qualities(options: argparse.Namespace) -> Any:
    """Seconds to a likeness, for the MLP and the ViT."""
    for name in ("mlp", "vit"):
        if name not in options.models:
            continue
        build = functools.partial(MODELS[name], RATE, channels=3, size=32)
        victims = victims_of(build, 1, device=options.device, data=options.data)
        yield quality(
            name,
            victims,
            device=options.device,
            iterations=20 if options.quick else 9000,
            plain=name == "mlp" or options.full,
            search=name == "mlp" or options.full,
        )


if __name__ == "__main__":
    main()
