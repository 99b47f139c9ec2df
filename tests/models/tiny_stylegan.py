"""A small StyleGAN for digits, with trained weights beside it.

``examples/train_tiny_stylegan.py`` trains it and states how; the weights are stored in
half precision.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Z_DIM, WIDTH, SIDE = 32, 64, 28
FILE = Path(__file__).with_name("tiny_stylegan.safetensors")


class Mapping(nn.Module):
    """Three linear layers, LeakyReLU: z, (rows, 32) → w, (rows, 64)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = ((Z_DIM, width), (width, width), (width, width))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)

    def forward(self, z: Tensor) -> Tensor:
        for layer in self.layers:
            z = F.leaky_relu(layer(z), 0.2)
        return z


class Modulated(nn.Module):
    """A 3×3 convolution whose input channels a style scales, demodulated.

    Source: Karras 2020, StyleGAN2, eq. 1 and 3; scales act on maps, not on kernels.
    """

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.style = nn.Linear(width, inputs)
        nn.init.ones_(self.style.bias)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        style = self.style(w)
        size = style.square() @ self.weight.square().sum((2, 3)).T
        x = F.conv2d(x * style[:, :, None, None], self.weight, padding=1)
        x = x * (size + 1e-8).rsqrt()[:, :, None, None]
        return F.leaky_relu(x + self.bias[:, None, None], 0.2) * 2**0.5


class Synthesis(nn.Module):
    """(rows, 5, 64) → (rows, 1, 28, 28): constant of 7×7, twice doubled, to grey."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.randn(1, 64, 7, 7))
        sizes = ((64, 64), (64, 48), (48, 32), (32, 16))
        self.blocks = nn.ModuleList(Modulated(a, b, width) for a, b in sizes)
        self.style = nn.Linear(width, sizes[-1][1])
        nn.init.ones_(self.style.bias)
        self.grey = nn.Conv2d(sizes[-1][1], 1, 1)

    def forward(self, w: Tensor) -> Tensor:
        x = self.constant.expand(len(w), -1, -1, -1)
        for number, block in enumerate(self.blocks):
            if number in (1, 3):
                x = F.interpolate(
                    x, scale_factor=2, mode="bilinear", align_corners=False
                )
            x = block(x, w[:, number])
        return self.grey(x * self.style(w[:, -1])[:, :, None, None])  # type: ignore[no-any-return]


class TinyStyleGAN(nn.Module):
    """``mapping`` and ``synthesis``, as the attack ``glass`` takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.z_dim, self.num_ws = Z_DIM, 5
        self.mapping, self.synthesis = Mapping(WIDTH), Synthesis(WIDTH)

    def forward(self, z: Tensor) -> Tensor:
        """(rows, 32), standard normal → (rows, 1, 28, 28), about [-1, 1]."""
        w = self.mapping(z)
        return self.synthesis(w[:, None].expand(-1, self.num_ws, -1))  # type: ignore[no-any-return]


def tiny_stylegan() -> TinyStyleGAN:
    """With its trained weights, float32, in eval mode."""
    from safetensors.torch import load_file

    with torch.random.fork_rng():
        model = TinyStyleGAN()
    model.load_state_dict({k: v.float() for k, v in load_file(FILE).items()})
    return model.eval().requires_grad_(False)
