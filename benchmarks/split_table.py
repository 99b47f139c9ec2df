"""Attacks on features at three depths of three clients: the paper's Table 1, in small.

    python benchmarks/split_table.py --data FOLDER --out FOLDER --client vit

Each of linear_inverse, rmle, lm, ensemble and inverse_network, without and with a
polish, on images that no attacker saw. Public images are the training part of the data.
Re-identification is among 64 candidates. One line of JSON per cell; a cell that is
there is not run again. Sheets: originals on top, then a row per attack.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.split_clients import Client, client_of
from privaudit._pixels import to_png
from privaudit.attacks import (
    Ensemble,
    FeatureAttack,
    InverseNetwork,
    LinearInverse,
    Lm,
    Rmle,
)
from privaudit.attacks._polish import Polish, polish_images
from privaudit.config import Budget, Split
from privaudit.metrics import MsSsim, Psnr, Ssim
from privaudit.session.feature_cut import opened_cut
from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction

POLISH = 200
CUTS = {
    "vit": ("blocks.1", "blocks.3", "blocks.5"),
    "cnn": ("stages.0", "stages.1", "stages.2"),
    "mobilenet": ("features.7", "features.13", "features.18"),
}
SEARCHES: dict[str, tuple[FeatureAttack, ...]] = {
    "small": (
        LinearInverse(),
        Rmle(iterations=800),
        Lm(iterations=300),
        Ensemble(iterations=400),
        InverseNetwork(iterations=1500),
    ),
    "mobilenet": (
        LinearInverse(),
        Rmle(iterations=600),
        Lm(iterations=600, cool=0.25),
        Ensemble(),
        InverseNetwork(iterations=300, batch_size=8, width=64),
    ),
}


def main() -> None:
    """Run the cells of one client; print and keep a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--client", choices=sorted(CUTS), required=True)
    parser.add_argument("--cut", action="append")
    parser.add_argument("--attack", action="append", help="by name; default: all")
    parser.add_argument("--seconds", type=float, help="budget of linear_inverse")
    parser.add_argument("--images", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    client = client_of(options.client, options.data)
    for cut in options.cut or CUTS[options.client]:
        _cut(client, cut, options)


def _cut(client: Client, cut: str, options: argparse.Namespace) -> None:
    count, out, wanted = options.images, options.out, options.attack
    images = client.held_out[:count]
    opened = opened_cut(client.model, Split(cut), images, client.scale, None)
    with torch.no_grad():
        sent = opened.exposure.predict(client.model, images)
    channels, height, width = images.shape[1:]
    seen = FeatureObservation(sent, (channels, height, width))
    target = FeatureTarget(client.model, opened.exposure, client.public)
    key = "mobilenet" if client.name == "mobilenet" else "small"
    rows: list[tuple[str, Tensor]] = [("original", images)]
    for attack in SEARCHES[key]:
        if wanted and attack.name not in wanted:
            continue
        solved = attack.name == "linear_inverse"
        budget = Budget(seconds=options.seconds) if solved else Budget()
        place = out / f"{client.name}-{cut}-{attack.name}"
        guess = _kept(place, partial(_attacked, attack, target, seen, budget))
        if not len(guess[0]):
            nothing = {"client": client.name, "cut": cut, "attack": attack.name}
            print(json.dumps({**nothing, "note": "gave no image"}), flush=True)
            continue
        polish = _kept(
            out / f"{place.name}-polish", partial(_polished, guess[0], target, seen)
        )
        for label, (found, seconds) in (
            (attack.name, guess),
            (f"{attack.name} + polish", polish),
        ):
            rows.append((label, found))
            line = {
                "client": client.name, "cut": cut, "shape": list(sent.shape[1:]),
                "attack": label, "images": count,
                "settings": attack.settings(), "seconds": round(seconds, 1),
                **_scores(client.held_out, found),
            }  # fmt: skip
            print(json.dumps(line), flush=True)
            with (out / "table.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
    sheet = torch.cat([torch.cat(list(r[:8]), 2) for _, r in rows], 1)
    (out / f"{client.name}-{cut}.png").write_bytes(to_png(sheet, None))


def _attacked(
    attack: FeatureAttack,
    target: FeatureTarget,
    seen: FeatureObservation,
    budget: Budget,
) -> list[Reconstruction]:
    generator = torch.Generator().manual_seed(0)
    return attack.run(target, seen, budget=budget, generator=generator)


def _polished(
    guess: Tensor, target: FeatureTarget, seen: FeatureObservation
) -> list[Reconstruction]:
    how = Polish(steps=POLISH)
    return polish_images(target, seen, guess, how=how, budget=Budget())


def _kept(
    place: Path, make: Callable[[], list[Reconstruction]]
) -> tuple[Tensor, float]:
    """Images and the CPU seconds that they took; from the file where it is there."""
    file = place.with_name(f"{place.name}.npz")
    if not file.exists():
        started = time.process_time()
        found = [f.images for f in make() if f.images is not None]
        images = torch.cat(found) if found else torch.zeros(0)
        spent = time.process_time() - started
        np.savez(file, images=images.numpy(), seconds=spent)
    with np.load(file) as stored:
        return torch.from_numpy(stored["images"]), float(stored["seconds"])


def _scores(candidates: Tensor, guess: Tensor) -> dict[str, float]:
    truth = candidates[: len(guess)]
    guess = guess.clamp(0, 1)
    measured = {}
    for metric in (Ssim(), MsSsim(), Psnr()):
        values = [s.value for s in metric.score(truth, guess)]
        known = [v for v in values if v is not None]
        measured[metric.name] = round(sum(known) / max(1, len(known)), 4)
    apart = torch.cdist(guess.flatten(1).double(), candidates.flatten(1).double())
    right = apart.argmin(1) == torch.arange(len(guess))
    return {**measured, "re_identification": float(right.double().mean())}


if __name__ == "__main__":
    main()
