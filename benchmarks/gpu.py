"""The ratios of speed.py on a CUDA device, in under ten minutes.

    python benchmarks/gpu.py --out gpu.json [--data FOLDER]
    python benchmarks/gpu.py --out gpu.json --device cpu --quick     (a dry run)

Without a device it says so, measures nothing and ends with 0. Each cell is given up
once ``--minutes`` are over; what was left out is named in the file.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._speed_common import (
    RATE,
    Victims,
    attack_pace,
    gemm_peak,
    middle,
    peak_mib,
    steps_per_s,
    victims_of,
)
from benchmarks._speed_plain import PlainLoop
from privaudit.study.dia_models import ViT, lenet, mlp

CELLS = (
    ("mlp", mlp, (1, 64, 512)),
    ("lenet", lenet, (1, 64)),
    ("vit", ViT, (1, 16, 128)),
)
RUNS, ITERATIONS = 3, 200


def main() -> None:
    """Measure every cell, or say why not."""
    options = _parsed()
    missing = options.device == "cuda" and not torch.cuda.is_available()
    record: dict[str, Any] = {"torch": torch.__version__, "device": options.device}
    if missing:
        record["skipped"] = "no CUDA device: nothing was measured"
        print(record["skipped"])
        options.out.write_text(json.dumps(record, indent=1))
        return
    if options.device == "cpu":
        torch.set_num_threads(1)
    else:
        record["name"] = torch.cuda.get_device_name()
    record["gemm_gflop_per_s"] = gemm_peak(options.device)
    record["rows"], record["left_out"] = [], []
    deadline = time.monotonic() + 60 * options.minutes
    for name, build, counts in CELLS:
        make = functools.partial(build, RATE, channels=3, size=32)
        for count in counts[:1] if options.quick else counts:
            if time.monotonic() > deadline:
                record["left_out"].append([name, count])
                continue
            victims = victims_of(make, count, device=options.device, data=options.data)
            row = {"model": name, "victims": count} | _measured(victims, options)
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
            options.out.write_text(json.dumps(record, indent=1))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder of the DIA authors' victims")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def _measured(victims: Victims, options: argparse.Namespace) -> dict[str, Any]:
    """Both plain loops and the attack, in turn."""
    device = options.device
    many = 10 if options.quick else ITERATIONS
    found: dict[str, list[float]] = {"careful": [], "usual": [], "fast": []}
    trace = []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(1 if options.quick else RUNS):
        for kind in ("careful", "usual"):
            loop = PlainLoop(victims, "careful" if kind == "careful" else "usual")
            found[kind].append(steps_per_s(loop.step, max(5, many // 4), device))
        pace = attack_pace(victims, many, device=device)
        found["fast"].append(pace.after)
        trace.append(round(pace.trace_s, 2))
    rates = {f"{k}_victim_iterations_per_s": middle(v) for k, v in found.items()}
    ratios = {
        f"fast_over_{k}": middle(
            [f / p for f, p in zip(found["fast"], found[k], strict=True)]
        )
        for k in ("careful", "usual")
    }
    return {**rates, **ratios, "set_up_s": trace, "peak_memory_mib": peak_mib(device)}


if __name__ == "__main__":
    main()
