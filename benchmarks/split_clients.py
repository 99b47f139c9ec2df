"""The clients that benchmarks of split inference attack, with their images."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from tests.models import digits_client, mobilenet, split_clients

CANDIDATES = 64
"""Images among which a reconstruction is to be found again."""


@dataclass(frozen=True, eq=False)
class Client:
    """A model, how its input is scaled, and images.

    Attributes:
        public: What attackers may learn from; no client's test image is among them.
        held_out: 64 candidates; the first ones are attacked.
    """

    name: str
    model: nn.Module
    scale: Normalisation
    public: Tensor
    held_out: Tensor


def client_of(name: str, data: Path) -> Client:
    """``digits``, ``vit``, ``cnn`` or ``mobilenet`` with its images."""
    if name == "digits":
        return _digits(data)
    if name == "mobilenet":
        return _mobilenet(data)
    scale = Normalisation(split_clients.MEAN, split_clients.STD)
    public = pictures(data / "cifar10_subset.zip", "train/", 32)
    # Evenly over the classes, which the file has one after the other.
    test = pictures(data / "cifar10_subset.zip", "test/", 32)
    spread = torch.linspace(0, len(test) - 1, CANDIDATES).long()
    order = torch.randperm(CANDIDATES, generator=torch.Generator().manual_seed(0))
    held_out = test[spread][order]
    return Client(name, split_clients.trained(name), scale, public, held_out)


def _digits(data: Path) -> Client:
    """Public are the 8,000 that the client and the prior learnt from."""
    with np.load(data / "mnist_t10k.npz") as arrays:
        images = torch.from_numpy(arrays["images"]).float()[:, None] / 255
    scale = Normalisation(digits_client.MEAN, digits_client.STD)
    model = digits_client.digits_client()
    return Client("digits", model, scale, images[:8000], images[8000:8064])


def _mobilenet(data: Path) -> Client:
    scale = Normalisation(mobilenet.MEAN, mobilenet.STD)
    public = pictures(data / "natural_160.zip", "", 128)
    held = pictures(data / "natural_224_eval.zip", "", 128)
    others = public[-(CANDIDATES - len(held)) :]
    file = mobilenet.weights_file()
    if file is None:
        raise SystemExit(f"install {mobilenet.PACKAGE} for its weights")
    return Client(
        "mobilenet", mobilenet.mobilenet(file), scale, public[: -len(others)],
        torch.cat([held, others]),
    )  # fmt: skip


def pictures(file: Path, folder: str, side: int) -> Tensor:
    """(count, 3, side, side) in [0, 1]."""
    return torch.stack(list(_read(file, folder, side)))


def labelled(file: Path, folder: str, side: int) -> tuple[Tensor, Tensor]:
    """All pictures of a part, and the number of each one's folder, by name."""
    with zipfile.ZipFile(file) as archive:
        names = [n for n in sorted(archive.namelist()) if n.startswith(folder)]
    kinds = [n.split("/")[-2] for n in names if n.endswith((".jpg", ".png"))]
    order = sorted(set(kinds))
    return pictures(file, folder, side), torch.tensor([order.index(k) for k in kinds])


def _read(file: Path, folder: str, side: int) -> Iterator[Tensor]:
    with zipfile.ZipFile(file) as archive:
        for name in sorted(archive.namelist()):
            if not name.startswith(folder) or not name.endswith((".jpg", ".png")):
                continue
            with Image.open(io.BytesIO(archive.read(name))) as picture:
                pixels = np.asarray(picture.convert("RGB").resize((side, side)))
            yield torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
