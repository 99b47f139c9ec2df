"""Defenses of gradients against attackers who know of them, and who do not.

    python benchmarks/defenses_gradient.py --data FOLDER --out FOLDER --model mlp

The MLP and the LeNet of Scheliga 2023 (their sizes, random weights), victims of
CIFAR-10 in batches of one. The utility is the accuracy on 2,000 held-out images after
a short federated training behind each defense (four clients, Adam at the server).
``--rates`` is the sweep of dropout rates of the MLP instead, as in the paper's Table 1.
Parts that are there are not run again; the report lies in the same folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.split_clients import labelled
from privaudit import Auditor, Budget, Client
from privaudit.attacks import (
    Attack,
    ClosedForm,
    DropoutInversion,
    InvertingGradients,
    SparseFactorization,
)
from privaudit.defenses import (
    Defense,
    DropoutRate,
    GaussianNoise,
    GradientClipping,
    GradientPruning,
    Quantisation,
    SignSgd,
    Undefended,
)
from privaudit.study.compare import DefenseStudy
from privaudit.study.compare_page import markdown
from privaudit.study.dia_paper import paper_rows
from privaudit.study.federated import FederatedTraining
from privaudit.study.utility import accuracy
from tests.models.dia import lenet, mlp

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCH = 32
ROUNDS = 300


def grid(*, rates: bool) -> list[Defense | list[Defense]]:
    """The rows of a table."""
    if rates:
        return [DropoutRate(p=p) for p in (0.0, 0.25, 0.5, 0.75)]
    return [
        Undefended(),
        DropoutRate(p=0.5),
        GaussianNoise(noise_std=0.1),
        GaussianNoise(noise_std=1.0),
        GradientPruning(ratio=0.9),
        GradientPruning(ratio=0.99),
        SignSgd(),
        Quantisation(bits=8),
        [GradientClipping(max_norm=1.0), GaussianNoise(noise_std=0.5)],
    ]


def built(name: str) -> nn.Module:
    """Random weights, the same each time; dropout layers that drop nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return mlp(0.0) if name == "mlp" else lenet(0.0)


def study(options: argparse.Namespace) -> DefenseStudy:
    """Run or finish one table."""
    with np.load(options.data / "dia_victims_cifar10.npz") as arrays:
        victims = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).float() / 255
        labels = torch.from_numpy(arrays["labels"]).long()
    images, classes = labelled(options.data / "cifar10_subset.zip", "train/", 32)
    tests = labelled(options.data / "cifar10_subset.zip", "test/", 32)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for some in torch.split(order, BATCH):
            yield images[some], classes[some]

    own: list[Attack] = [
        ClosedForm(),
        SparseFactorization(),
        DropoutInversion(initialisation="analytical"),
        InvertingGradients(),
    ]
    auditor = Auditor(
        built(options.model), mean=MEAN, std=STD, client=Client(batch_size=1),
        attacks=own, budget=Budget(iterations=options.iterations),
    )  # fmt: skip
    held_out = list(zip(tests[0].split(250), tests[1].split(250), strict=True))
    count = options.victims
    return auditor.compare_defenses(
        (victims[:count], labels[:count]),
        grid(rates=options.rates),
        train_data=batches,
        utility=accuracy(held_out, mean=MEAN, std=STD),
        training=FederatedTraining(clients=4, rounds=options.rounds),
        out=options.out,
    )


def paper_of(model: str) -> dict[float, float]:
    """SSIM of IG on CIFAR-10 in the paper, by dropout rate."""
    rows = [
        r for r in paper_rows()
        if r.attack == "IG" and r.case.model == model and r.case.batch == 1
        and r.case.dataset == "cifar10"
    ]  # fmt: skip
    return {r.case.p: r.mean["ssim"] for r in rows}


def main() -> None:
    """Run one table; print it, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=("mlp", "lenet"), required=True)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--victims", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = study(options)
    if options.rates:
        told = found.result.model_copy(update={"paper": paper_of(options.model)})
        found = replace(found, result=told)
    found.save(options.out)
    print(markdown(found.result))
    for row in found.result.rows:
        line = {
            "defense": row.label,
            "naive": row.naive and row.naive.by_attack,
            "adaptive": row.adaptive and row.adaptive.by_attack,
            "notes": row.adaptive and row.adaptive.notes,
            "utility": row.utility,
            "error": row.error,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
