"""Guided diffusion: what its settings are worth, and how many images an hour it makes.

    python benchmarks/guided_ablations.py --data FOLDER --out FILE.json --client digits

Ablations: one setting at a time around the default, on 8 images; λ_ℓ2 too, since it
decides more than the others. Speed: steps (a level and round of one image) a second and
images an hour at 1, 4 and 16 at once, beside a plain loop for one image as published
code has it (diffusers' scheduler, the loss looked at in every round), in turn in the
same run; medians of 3.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.guided import PRIORS, Cell, Found, cell_of
from benchmarks.split_clients import client_of
from privaudit.attacks import Drag, Rmle
from privaudit.attacks._feature_loss import FeatureLoss, distance_for
from privaudit.attacks._guided_search import prior_for
from privaudit.attacks.drag import PRESETS
from privaudit.priors.diffusion import DiffusionModel

CUTS = {
    "digits": "hidden", "vit": "blocks.5", "cnn": "stages.2",
    "mobilenet": "features.13",
}  # fmt: skip
ABLATIONS: tuple[dict[str, Any], ...] = (
    {}, {"steps": 20}, {"steps": 100}, {"rounds": 1}, {"rounds": 8},
    {"weight": 0.05}, {"weight": 0.5}, {"moments": False}, {"through": False},
    {"mix": "slerp"}, {"l2_weight": 0.01}, {"clamp_input": True},
)  # fmt: skip
PARTS = ("ablations", "presets", "speed")
WARM = (0.2, 0.4, 0.7)
"""Strengths of runs that start from the images of rmle."""
SPEED = {"steps": 10, "rounds": 2}
BATCHES = (1, 4, 16)


def main() -> None:
    """Run one part or both, print and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--client", choices=sorted(CUTS), required=True)
    parser.add_argument("--cut")
    parser.add_argument("--part", choices=PARTS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    client = client_of(options.client, options.data)
    cut = options.cut or CUTS[client.name]
    prior = PRIORS.get(client.name, "natural")
    parts = options.part or list(PARTS)
    measured: dict[str, Any] = {"client": client.name, "cut": cut, "prior": prior}
    if "ablations" in parts:
        cell = cell_of(client, cut, 8, options.out.parent)
        measured["ablations"] = [_ablation(cell, prior, change) for change in ABLATIONS]
    if "presets" in parts:
        cell = cell_of(client, cut, 8, options.out.parent)
        measured["presets"] = _presets(cell, prior)
    if "speed" in parts:
        cell = cell_of(client, cut, max(BATCHES), options.out.parent)
        measured["speed"] = _speed(cell, prior)
    options.out.write_text(json.dumps(measured, indent=1))


def _presets(cell: Cell, prior: str) -> list[dict[str, Any]]:
    """Lengths by name; and runs from the images of rmle, whose time counts too."""
    lines = [
        _ablation(cell, prior, {**settings, "name": name})
        for name, settings in PRESETS.items()
    ]
    started = time.process_time()
    first, losses = cell.attacked(Rmle(iterations=800), None, None)
    spent = time.process_time() - started
    lines.append(_line(cell, {"name": "rmle, 800 iterations"}, first, losses, spent))
    for strength in WARM:
        change = {"name": "from rmle", "start": "best", "strength": strength}
        lines.append(_ablation(cell, prior, change, start=first, before=spent))
    return lines


def _ablation(
    cell: Cell,
    prior: str,
    change: dict[str, Any],
    *,
    start: Tensor | None = None,
    before: float = 0.0,
) -> dict[str, Any]:
    started = time.process_time()
    settings = {n: v for n, v in change.items() if n != "name"}
    images, losses = cell.attacked(Drag(prior=prior, **settings), start, None)
    spent = before + time.process_time() - started
    return _line(cell, change, images, losses, spent)


def _line(
    cell: Cell,
    change: dict[str, Any],
    images: Tensor,
    losses: list[float],
    spent: float,
) -> dict[str, Any]:
    found = Found("", images, losses, spent)
    line = {
        "change": change,
        "ssim": round(float(found.ssim(cell.truth).mean()), 4),
        "psnr_db": round(float(found.psnr(cell.truth).mean()), 2),
        "re_identified": float(found.right(cell.candidates).double().mean()),
        "loss": sum(losses) / len(losses),
        "seconds": round(spent, 1),
    }
    print(json.dumps(line), flush=True)
    return line


def _speed(cell: Cell, name: str) -> list[dict[str, Any]]:
    prior = prior_for(name, cell.target, cell.seen.image_shape, torch.device("cpu"))
    if isinstance(prior, str):
        raise SystemExit(prior)
    cell.target.memory.clear()
    times: dict[int, list[float]] = {0: [], **{b: [] for b in BATCHES}}
    for _ in range(3):
        times[0].append(_plain(cell, prior))
        for batch in BATCHES:
            times[batch].append(_batched(cell, name, batch))
    rounds = SPEED["steps"] * SPEED["rounds"]
    plain = statistics.median(times[0])
    paper_like = Drag().steps * Drag().rounds
    lines = []
    for batch, measured in times.items():
        each = statistics.median(measured)
        lines.append({
            "batch": batch or "plain loop, 1", "seconds_a_step": each / rounds,
            "steps_a_second": rounds / each,
            "images_an_hour": 3600 / (each / rounds * paper_like),
            "ratio": plain / each,
        })  # fmt: skip
        print(json.dumps(lines[-1]), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mib": round(peak)}))
    return lines


def _batched(cell: Cell, name: str, batch: int) -> float:
    """CPU seconds of one image."""
    part = cell.first(batch)
    attack = Drag(prior=name, **SPEED)
    part.attacked(attack.model_copy(update={"steps": 2, "rounds": 1}), None, None)
    started = time.process_time()
    part.attacked(attack, None, None)
    return (time.process_time() - started) / batch


def _plain(cell: Cell, prior: DiffusionModel) -> float:
    """CPU seconds of one image in a loop like those that are published."""
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(
        trained_betas=_betas(prior.alphas), prediction_type=prior.prediction,
        clip_sample=True, set_alpha_to_one=True,
    )  # fmt: skip
    scheduler.set_timesteps(SPEED["steps"])
    features = cell.seen.features[:1]
    distance = distance_for(cell.target.exposure.layout, None)
    loss = FeatureLoss(cell.target, features, distance)
    z = torch.randn(1, *cell.seen.image_shape)
    mean, square, count = torch.zeros_like(z), torch.zeros_like(z), 0
    started = time.process_time()
    for time_step in scheduler.timesteps:
        for _ in range(SPEED["rounds"]):
            z = z.detach().requires_grad_()
            output = prior.predict(z, time_step[None])
            step = scheduler.step(output, time_step, z, eta=1.0)
            value = loss.matching((step.pred_original_sample + 1) / 2).sum()
            value.backward()  # type: ignore[no-untyped-call]
            value.item()
            if z.grad is None:
                raise RuntimeError("no gradient reached the noisy image")
            gradient = z.grad * min(1.0, 0.02 / float(z.grad.norm()))
            count += 1
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            turned = (mean / (1 - 0.9**count)) / (
                (square / (1 - 0.999**count)).sqrt() + 1e-8
            )
            z = (step.prev_sample - 0.01 * turned / turned.norm()).detach()
    return time.process_time() - started


def _betas(alphas: Tensor) -> list[float]:
    before = torch.cat([torch.ones(1), alphas[:-1]])
    return (1 - alphas / before).tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
