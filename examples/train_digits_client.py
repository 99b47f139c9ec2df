"""Train the small CNN on digits that `privaudit demo --split` attacks.

The data is an .npz of ``images`` (count, 28, 28) and ``labels``; the last 2,000 are
held out. One thread of a CPU takes a minute or two:

    python examples/train_digits_client.py --data mnist_t10k.npz --out out

So was ``privaudit/_samples/digits_client.safetensors`` made, from the first 8,000 of
the 10,000 test digits of MNIST: 96.15 % of the others right. The accuracy that is
printed is that of the stored file.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from privaudit._samples.digits import MEAN, STD, DigitsCNN


def load(data: Path, held_out: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to learn from, then those held out."""
    with np.load(data) as arrays:
        images = torch.from_numpy(arrays["images"]).float()[:, None] / 255
        labels = torch.from_numpy(arrays["labels"]).long()
    images = (images - MEAN[0]) / STD[0]
    cut = len(images) - held_out
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def train(images: Tensor, labels: Tensor, epochs: int, batch: int) -> DigitsCNN:
    model = DigitsCNN()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for epoch in range(epochs):
        order = torch.randperm(len(images))
        for chosen in order.split(batch)[: len(images) // batch]:
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}", flush=True)
    return model


@torch.no_grad()
def accuracy(file: Path, images: Tensor, labels: Tensor) -> float:
    """Of the weights as they are stored."""
    model = DigitsCNN()
    model.load_state_dict({k: v.float() for k, v in load_file(file).items()})
    found = model.eval()(images).argmax(1)
    return float((found == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small client on digits.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--held-out", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    torch.manual_seed(settings.seed)
    images, labels, *rest = load(settings.data, settings.held_out)
    print(f"images: {len(images)} to learn from, {len(rest[0])} held out")
    model = train(images, labels, settings.epochs, settings.batch)
    settings.out.mkdir(parents=True, exist_ok=True)
    file = settings.out / "digits_client.safetensors"
    save_file({k: v.half().contiguous() for k, v in model.state_dict().items()}, file)
    stored = accuracy(file, *rest)
    print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB, accuracy {stored:.4f}")


if __name__ == "__main__":
    main()
