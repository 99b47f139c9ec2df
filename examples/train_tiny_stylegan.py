"""Train the small StyleGAN on digits that the tests of the attack ``glass`` use.

The data is an .npz of ``images`` (count, 28, 28); the last 2,000 are held out. One
thread of a CPU takes about ten minutes:

    python examples/train_tiny_stylegan.py --data mnist_t10k.npz --out out

So was ``tests/models/tiny_stylegan.safetensors`` made, from the first 8,000 of the
10,000 test digits of MNIST. Beside it lies a sheet of samples: look at it. The network
is that of a StyleGAN; it is trained as the decoder of a variational autoencoder (Kingma
2014; noise level by Rybkin 2021), whose encoder is not kept. Against a critic it lost
half of the ten digits in the same time.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.models.tiny_stylegan import Z_DIM, TinyStyleGAN


def load(data: Path, held_out: int) -> tuple[Tensor, Tensor]:
    """Images in [-1, 1], (count, 1, 28, 28): to learn from, and held out."""
    with np.load(data) as arrays:
        images = torch.from_numpy(arrays["images"]).float()[:, None] / 127.5 - 1
    cut = len(images) - held_out
    return images[:cut], images[cut:]


class Encoder(nn.Sequential):
    """(rows, 1, 28, 28) → mean and log variance of z, (rows, 2, 32)."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(64 * 49, 128), nn.LeakyReLU(0.2),
            nn.Linear(128, 2 * Z_DIM), nn.Unflatten(1, (2, Z_DIM)),
        )  # fmt: skip


def loss_of(
    model: TinyStyleGAN, encoder: Encoder, images: Tensor
) -> tuple[Tensor, Tensor]:
    """Nats per image with the best noise level of the batch, and the squared error."""
    mean, log_variance = encoder(images).unbind(1)
    z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
    error = (model(z) - images).square().mean()
    told = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
    return images[0].numel() / 2 * error.log() + told, error


def train(images: Tensor, steps: int, batch: int) -> TinyStyleGAN:
    model, encoder = TinyStyleGAN(), Encoder()
    parameters = [*model.parameters(), *encoder.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for step in range(steps):
        chosen = images[torch.randint(len(images), (batch,))]
        loss, error = loss_of(model, encoder, chosen)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 100.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            found = f"squared error {error.item():.3f}, loss {loss.item():.0f}"
            print(f"step {step + 1} of {steps}: {found}", flush=True)
    return model


@torch.no_grad()
def sheet(model: TinyStyleGAN, file: Path) -> None:
    """Sixty-four samples in one picture."""
    from PIL import Image

    images = (model(torch.randn(64, Z_DIM)) + 1) / 2
    rows = images.clamp(0, 1).view(8, 8, 28, 28).transpose(1, 2).reshape(224, 224)
    Image.fromarray((rows * 255).byte().numpy()).resize((672, 672)).save(file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small StyleGAN on digits.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--held-out", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    torch.manual_seed(settings.seed)
    images, rest = load(settings.data, settings.held_out)
    print(f"images: {len(images)} to learn from, {len(rest)} held out")
    model = train(images, settings.steps, settings.batch)
    settings.out.mkdir(parents=True, exist_ok=True)
    file = settings.out / "tiny_stylegan.safetensors"
    save_file({k: v.half().contiguous() for k, v in model.state_dict().items()}, file)
    model.load_state_dict({k: v.float() for k, v in load_file(file).items()})
    sheet(model.eval(), settings.out / "samples.png")
    count = sum(p.numel() for p in model.parameters())
    print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB, {count:,} parameters")


if __name__ == "__main__":
    main()
