"""Seconds and memory of attacks on features, one image and several at once.

    python benchmarks/split_attacks.py [--cuts transformer.resblocks.11] [--batch 4]

The client is CLIP's ViT-B/16 at full size (open_clip, random weights: speed does not
depend on them). Rounds of one image and of several take turns, so that both see the
same machine; beside the wall clock stands the time of the process, which other
processes lengthen less. One thread unless ``--threads`` says more. JSON on standard
output.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import FEATURE_ATTACKS, FeatureAttack
from privaudit.config import Budget
from privaudit.exposure import Cut, FeatureExposure
from privaudit.types import Batch, FeatureLayout, FeatureObservation, FeatureTarget

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
SIDE, GRID = 224, (14, 14)


@dataclass(frozen=True)
class Spent:
    """What one run took, per iteration."""

    wall_s: float
    process_s: float


def main() -> None:
    """Measure every attack at every cut; print one JSON object."""
    options = _options()
    torch.set_num_threads(options.threads)
    found = [
        measured(name, cut, options) for cut in options.cuts for name in options.attacks
    ]
    machine = {"torch": torch.__version__, "threads": options.threads}
    print(json.dumps({**machine, "device": options.device, "runs": found}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cuts", nargs="*",
        default=["ln_pre", "transformer.resblocks.5", "transformer.resblocks.11"],
    )  # fmt: skip
    parser.add_argument("--attacks", nargs="*", default=["rmle"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def measured(name: str, cut: str, options: argparse.Namespace) -> dict[str, Any]:
    """One attack at one cut: medians over the rounds."""
    target, observation = _client(cut, options)
    attack = FEATURE_ATTACKS[name](iterations=options.iterations)
    alone = FeatureObservation(observation.features[:1], observation.image_shape)
    _spent(attack, target, alone, options)  # warms up
    before = _peak_mib(options.device)
    single, several = [], []
    for _ in range(options.rounds):
        single.append(_spent(attack, target, alone, options))
        several.append(_spent(attack, target, observation, options))
    one, many = _median(single), _median(several)
    return {
        "attack": name,
        "cut": cut,
        "iterations": options.iterations,
        "seconds_per_iteration_one_image": _per(one, 1),
        f"seconds_per_iteration_and_image_of_{options.batch}": _per(
            many, options.batch
        ),
        "ratio_per_image_process_time": many.process_s / options.batch / one.process_s,
        "ratio_per_image_wall": many.wall_s / options.batch / one.wall_s,
        "peak_mib_one_image": before,
        f"peak_mib_of_{options.batch}": _peak_mib(options.device),
    }


def _client(
    cut: str, options: argparse.Namespace
) -> tuple[FeatureTarget, FeatureObservation]:
    import open_clip

    torch.manual_seed(0)
    whole = open_clip.create_model("ViT-B-16", pretrained=None)
    model = whole.visual.eval().to(options.device)
    exposure = FeatureExposure(
        Normalisation(MEAN, STD), Cut(cut), FeatureLayout("tokens", 1, GRID)
    )
    images = shipped_images(options.batch, (3, SIDE, SIDE)).to(options.device)
    observation = exposure.observe(model, Batch(images, None))
    return FeatureTarget(model, exposure), observation


def _spent(
    attack: FeatureAttack,
    target: FeatureTarget,
    observation: FeatureObservation,
    options: argparse.Namespace,
) -> Spent:
    generator = torch.Generator().manual_seed(0)
    wall, process = time.perf_counter(), time.process_time()
    attack.run(target, observation, budget=Budget(), generator=generator)
    if options.device != "cpu":
        torch.cuda.synchronize()
    spent = time.perf_counter() - wall, time.process_time() - process
    return Spent(*(s / options.iterations for s in spent))


def _median(runs: list[Spent]) -> Spent:
    return Spent(
        statistics.median(r.wall_s for r in runs),
        statistics.median(r.process_s for r in runs),
    )


def _per(spent: Spent, images: int) -> dict[str, float]:
    return {"wall": spent.wall_s / images, "process": spent.process_s / images}


def _peak_mib(device: str) -> float:
    """Peak of the process, or of what torch holds on the device."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
