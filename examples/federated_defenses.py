"""What do defenses of gradients cost a federated training, and what do they hide?

Four clients train a small MLP on digits, each behind the same defense; then steps are
attacked, by who does not know of the defense and by who does. The data is an
.npz of ``images`` (count, 28, 28) and ``labels``; the last 1,000 are held out:

    python examples/federated_defenses.py --data mnist_t10k.npz --out out

The page lies in ``out/report.html``. A second call goes on where the first was stopped.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from privaudit import Auditor, Budget, Client
from privaudit.defenses import (
    GaussianNoise,
    GradientClipping,
    GradientPruning,
    SignSgd,
    Undefended,
)
from privaudit.study.federated import FederatedTraining
from privaudit.study.utility import accuracy

CLIENTS, BATCH = 4, 32
DEFENSES = [
    Undefended(),
    GradientPruning(ratio=0.9),
    SignSgd(),
    [GradientClipping(max_norm=1.0), GaussianNoise(noise_std=1.0)],
]


def load(data: Path) -> tuple[Tensor, Tensor]:
    with np.load(data) as arrays:
        images = torch.from_numpy(arrays["images"]).float()[:, None] / 255
        labels = torch.from_numpy(arrays["labels"]).long()
    return images, labels


def small_mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--held-out", type=int, default=1000)
    options = parser.parse_args()
    images, labels = load(options.data)
    cut = len(images) - options.held_out
    batches = list(
        zip(images[:cut].split(BATCH), labels[:cut].split(BATCH), strict=True)
    )
    auditor = Auditor(
        small_mlp(), mean=0.13, std=0.31, client=Client(batch_size=1),
        attacks=["closed_form", "inverting_gradients"],
        budget=Budget(iterations=300),
    )  # fmt: skip
    study = auditor.compare_defenses(
        (images[cut : cut + 2], labels[cut : cut + 2]),
        DEFENSES,
        train_data=batches,
        utility=accuracy([(images[cut:], labels[cut:])], mean=0.13, std=0.31),
        training=FederatedTraining(clients=CLIENTS, rounds=options.rounds),
        out=options.out,
    )
    study.save(options.out)
    for row in study.result.rows:
        naive, adaptive = row.naive, row.adaptive
        if naive is None or adaptive is None or row.utility is None:
            print(f"{row.label}: {row.error}")
            continue
        found = [a.ssim_worst or 0.0 for a in (naive, adaptive)]
        print(
            f"{row.label}: accuracy {row.utility:.3f}, worst SSIM "
            f"{found[0]:.2f} naive, {found[1]:.2f} adaptive"
        )


if __name__ == "__main__":
    main()
