"""Guided diffusion against attacks without a learnt prior: does the prior help?

    python benchmarks/guided.py --data FOLDER --out FOLDER --client digits

Every attack without and with a polish, at its own length and, for attacks without a
prior, at the time that DRAG took ("equal time"). Controls: a polish from grey, and what
the prior draws without any features. Re-identification is among 64 candidates. One line
of JSON per cell; cells are kept and not run again. Tests are paired over images:
Wilcoxon on SSIM, the sign test on re-identification.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.split_clients import CANDIDATES, Client, client_of
from privaudit._pixels import to_png
from privaudit.attacks import (
    Drag,
    DragPp,
    Ensemble,
    FeatureAttack,
    InverseNetwork,
    Lm,
    Polish,
    Rmle,
)
from privaudit.attacks._guidance import unguided
from privaudit.attacks._guided_search import prior_for
from privaudit.config import Budget, Split
from privaudit.metrics import Ssim
from privaudit.session.feature_cut import opened_cut
from privaudit.types import FeatureObservation, FeatureTarget

CUTS = {
    "digits": ("pool", "deep", "hidden"),
    "vit": ("blocks.1", "blocks.5"),
    "cnn": ("stages.1", "stages.2"),
    "mobilenet": ("features.7", "features.13"),
}
PRIORS = {"digits": "digits"}


@dataclass(eq=False)
class Cell:
    """One client at one cut.

    Attributes:
        truth: (count, C, H, W), what is attacked.
        candidates: 64 images, those attacked first.
    """

    client: Client
    cut: str
    truth: Tensor
    candidates: Tensor
    target: FeatureTarget
    seen: FeatureObservation
    folder: Path

    def kept(self, label: str, make: Callable[[], tuple[Tensor, list[float]]]) -> Found:
        """From the file where it is there."""
        file = self.folder / f"{self.client.name}-{self.cut}-{label}.npz"
        if not file.exists():
            started = time.process_time()
            images, losses = make()
            spent = time.process_time() - started
            np.savez(file, images=images.numpy(), losses=losses, seconds=spent)
        with np.load(file) as stored:
            images = torch.from_numpy(stored["images"])
            found = Found(
                label, images, stored["losses"].tolist(), float(stored["seconds"])
            )
        self.say(found)
        return found

    def attacked(
        self, attack: FeatureAttack, start: Tensor | None, seconds: float | None
    ) -> tuple[Tensor, list[float]]:
        """Images, and the matching loss of each."""
        self.target.memory.pop("start", None)
        if start is not None:
            self.target.memory["start"] = start
        found = attack.run(
            self.target, self.seen, budget=Budget(seconds=seconds),
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        grey = torch.full_like(self.truth[:1], 0.5)
        images = [grey if f.images is None else f.images for f in found]
        losses = [f.search.loss_final if f.search else float("nan") for f in found]
        return torch.cat(images), losses

    def first(self, count: int) -> Cell:
        """The same with fewer images."""
        seen = FeatureObservation(self.seen.features[:count], self.seen.image_shape)
        return replace(self, truth=self.truth[:count], seen=seen)

    def say(self, found: Found) -> None:
        """Print and keep a line."""
        line = {
            "client": self.client.name, "cut": self.cut, "attack": found.label,
            "images": len(self.truth), "seconds": round(found.seconds, 1),
            "loss": float(np.mean(found.losses)),
            "ssim": round(float(found.ssim(self.truth).mean()), 4),
            "psnr_db": round(float(found.psnr(self.truth).mean()), 2),
            "re_identified": float(found.right(self.candidates).double().mean()),
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        with (self.folder / "guided.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(eq=False)
class Found:
    """What one attack drew."""

    label: str
    images: Tensor
    losses: list[float]
    seconds: float

    def ssim(self, truth: Tensor) -> Tensor:
        """(count,); 0 where it is not defined."""
        return torch.tensor([s.value or 0.0 for s in Ssim().score(truth, self.images)])

    def psnr(self, truth: Tensor) -> Tensor:
        """(count,), in dB."""
        return -10 * (self.images - truth).square().flatten(1).mean(1).log10()

    def right(self, candidates: Tensor) -> Tensor:
        """Whether the nearest candidate of each is the image itself."""
        apart = torch.cdist(
            self.images.flatten(1).double(), candidates.flatten(1).double()
        )
        return apart.argmin(1) == torch.arange(len(self.images))


def main() -> None:
    """Run the cells of one client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--client", choices=sorted(CUTS), required=True)
    parser.add_argument("--cut", action="append")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rmle", type=int, default=20_000, help="iterations of rmle")
    parser.add_argument("--lm", type=int, default=2000, help="iterations of lm")
    parser.add_argument("--ensemble", type=int, default=1000, help="of each search")
    parser.add_argument("--public", type=int, default=1500, help="training steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    client = client_of(options.client, options.data)
    for cut in options.cut or CUTS[client.name]:
        _run(cell_of(client, cut, options.images, options.out), options)


def cell_of(client: Client, cut: str, count: int, folder: Path) -> Cell:
    """The first ``count`` held-out images of a client behind a cut."""
    images = client.held_out[:count]
    opened = opened_cut(client.model, Split(cut), images, client.scale, None)
    with torch.no_grad():
        sent = opened.exposure.predict(client.model, images)
    channels, height, width = images.shape[1:]
    return Cell(
        client, cut, images, client.held_out[:CANDIDATES],
        FeatureTarget(client.model, opened.exposure, client.public),
        FeatureObservation(sent, (channels, height, width)), folder,
    )  # fmt: skip


def _run(cell: Cell, options: argparse.Namespace) -> None:
    prior = PRIORS.get(cell.client.name, "natural")
    drag = Drag(prior=prior)
    network = InverseNetwork(iterations=options.public)
    found: dict[str, Found] = {}

    def both(label: str, attack: FeatureAttack, seconds: float | None = None) -> Found:
        first = cell.kept(label, lambda: cell.attacked(attack, None, seconds))
        last = cell.kept(
            f"{label}+polish", lambda: cell.attacked(Polish(), first.images, None)
        )
        found[first.label], found[last.label] = first, last
        return last

    both("drag", drag)
    clock = found["drag"].seconds
    both("rmle", Rmle(iterations=options.rmle))
    both("rmle-equal-time", Rmle(), clock)
    both("lm", Lm(iterations=options.lm))
    both("lm-equal-time", Lm(), clock)
    both("ensemble", Ensemble(iterations=options.ensemble))
    both("ensemble-equal-time", Ensemble(iterations=options.ensemble), clock)
    both("inverse_network", network)
    both("drag_pp", DragPp(drag=drag, inverse_network=network))
    found["grey+polish"] = cell.kept(
        "grey+polish",
        lambda: cell.attacked(Polish(), torch.full_like(cell.truth, 0.5), None),
    )
    found["unguided"] = cell.kept("unguided", lambda: _unguided(cell, drag))
    _tests(cell, found)
    rows = [cell.truth, *(f.images for f in found.values())]
    sheet = torch.cat([torch.cat(list(r[:16]), 2) for r in rows], 1)
    (cell.folder / f"{cell.client.name}-{cell.cut}.png").write_bytes(
        to_png(sheet, None)
    )


def _unguided(cell: Cell, drag: Drag) -> tuple[Tensor, list[float]]:
    shape = cell.seen.image_shape
    prior = prior_for(drag.prior, cell.target, shape, torch.device("cpu"))
    if isinstance(prior, str):
        raise SystemExit(prior)
    drawn = [
        unguided(prior, drag.steps, shape, cell.truth, seed)
        for seed in range(len(cell.truth))
    ]
    return torch.cat(drawn), [float("nan")]


def _tests(cell: Cell, found: dict[str, Found]) -> None:
    """DRAG with polish against the best run of every rival; DRAG++ against DRAG."""
    rivals = {
        name: [f for label, f in found.items() if label.startswith(name)]
        for name in ("rmle", "lm", "ensemble")
    }
    ours = found["drag+polish"]
    for name, runs in rivals.items():
        best = max(runs, key=lambda f: float(f.ssim(cell.truth).mean()))
        _compare(cell, ours, best, name)
        best = max(runs, key=lambda f: int(f.right(cell.candidates).sum()))
        _compare(cell, ours, best, f"{name}, most re-identified")
    _compare(cell, found["drag_pp+polish"], ours, "drag+polish")


def _compare(cell: Cell, ours: Found, theirs: Found, name: str) -> None:
    one, other = ours.ssim(cell.truth), theirs.ssim(cell.truth)
    right, wrong = ours.right(cell.candidates), theirs.right(cell.candidates)
    won, lost = int((right & ~wrong).sum()), int((wrong & ~right).sum())
    sign = (
        stats.binomtest(won, won + lost, alternative="greater").pvalue
        if (won + lost)
        else 1.0
    )
    line = {
        "client": cell.client.name, "cut": cell.cut, "ours": ours.label,
        "against": name, "run": theirs.label,
        "ssim": [round(float(one.mean()), 4), round(float(other.mean()), 4)],
        "p_ssim": float(stats.wilcoxon(one, other, alternative="greater").pvalue),
        "re_identified": [float(right.double().mean()), float(wrong.double().mean())],
        "won": won, "lost": lost, "p_re_identified": float(sign),
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    with (cell.folder / "guided-tests.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
