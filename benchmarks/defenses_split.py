"""Defenses of split inference against attackers who know of them, and who do not.

    python benchmarks/defenses_split.py --data FOLDER --out FOLDER --cut middle

On the trained ViT of the tests (CIFAR-10, 32×32): 8 held-out photographs, rmle, drag.
``middle`` is ``blocks.3``, chosen before the run as a cut at which undefended rmle is
above SSIM .5; ``deepest`` is ``blocks.5``. The attacker has photographs of its own kind
(other images of CIFAR-10's training part); utility is the accuracy on 2,000 held-out
images. DISCO and NoPeek learn from the training part for --steps steps (NoPeek at a
learning rate of 1e-2, for so few steps). Parts that are
there are not run again; the report lies in the same folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.split_clients import client_of, labelled
from privaudit import Auditor, Budget
from privaudit.attacks import Drag, Rmle
from privaudit.defenses import (
    Defense,
    Disco,
    GaussianNoise,
    NoPeek,
    Quantisation,
    TokenDrop,
    TokenShuffle,
    Undefended,
)
from privaudit.study.compare import DefenseStudy
from privaudit.study.compare_page import markdown
from privaudit.study.utility import accuracy
from tests.models import split_clients

CUTS = {"middle": "blocks.3", "deepest": "blocks.5"}
IMAGES = 8
BATCH = 64
STEPS = 400


def grid(where: str, steps: int) -> list[Defense]:
    """The rows of a table."""
    disco = [(0.95, 0.1), (0.75, 0.2), (0.95, 0.5)]
    if where == "deepest":
        disco = disco[:1]
    trained: list[Defense] = [
        Disco(utility_weight=w, ratio=r, steps=steps) for w, r in disco
    ]
    weights = (5.0,) if where == "deepest" else (1.0, 3.0, 5.0)
    trained += [NoPeek(weight=w, steps=steps, learning_rate=1e-2) for w in weights]
    rows: list[Defense] = [Undefended(), TokenShuffle()]
    if where == "deepest":
        return rows + trained
    return [
        *rows, TokenDrop(ratio=0.5), *trained, GaussianNoise(noise_std=0.1),
        GaussianNoise(noise_std=0.5), Quantisation(bits=4),
    ]  # fmt: skip


def study(options: argparse.Namespace) -> DefenseStudy:
    """Run or finish one table."""
    client = client_of("vit", options.data)
    images, labels = labelled(options.data / "cifar10_subset.zip", "train/", 32)
    tests = labelled(options.data / "cifar10_subset.zip", "test/", 32)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for some in torch.split(order, BATCH):
            yield images[some], labels[some]

    attacks = [Rmle(iterations=800), Drag()]
    auditor = Auditor(
        client.model,
        split=CUTS[options.cut],
        mean=split_clients.MEAN,
        std=split_clients.STD,
        attacks=attacks[1:] if options.cut == "deepest" else attacks,
        priors={"public_images": images[order[:2000]]},
        budget=Budget(),
    )
    held_out = [
        (x, y) for x, y in zip(tests[0].split(250), tests[1].split(250), strict=True)
    ]
    rows = grid(options.cut, options.steps)
    if options.only:
        rows = [r for r in rows if r.name in options.only]
    return auditor.compare_defenses(
        client.held_out[:IMAGES], rows, train_data=batches,
        utility=accuracy(held_out, mean=split_clients.MEAN, std=split_clients.STD),
        out=options.out,
    )  # fmt: skip


def main() -> None:
    """Run one table; print it, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cut", choices=sorted(CUTS), required=True)
    parser.add_argument("--steps", type=int, default=STEPS, help="of DISCO and NoPeek")
    parser.add_argument("--only", action="append", help="names of defenses")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = study(options)
    found.save(options.out)
    print(markdown(found.result))
    for row in found.result.rows:
        line = {
            "defense": row.label,
            "naive": row.naive and row.naive.by_attack,
            "adaptive": row.adaptive and row.adaptive.by_attack,
            "notes": row.adaptive and row.adaptive.notes,
            "utility": row.utility,
            "seconds": [a.seconds for a in (row.naive, row.adaptive) if a],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
