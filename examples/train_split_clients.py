"""Train the two small clients that the tests of split inference attack.

A ViT and a CNN on 32x32 photographs of ten classes, from one seed, on one CPU thread.
The data is a zip (or an unpacked folder) of ``train/CLASS/*.jpg`` and
``test/CLASS/*.jpg``; the test part is never trained on. The weights are stored in half
precision, and the accuracy that is printed last is that of the stored file:

    python examples/train_split_clients.py --data cifar10.zip --out out \\
        --model cnn --epochs 16 --rate 2e-3 --bfloat16
    python examples/train_split_clients.py --data cifar10.zip --out out \\
        --model vit --epochs 16 --bfloat16 --teacher out/split_cnn.safetensors

So were the files in ``tests/models`` made, from 20,000 photographs of CIFAR-10: the CNN
in 507 s of one busy CPU core, 81.9 % of 2,000 held-out photographs right; the ViT in
952 s, 67.95 %.

A ViT learns slowly from few images. It starts from weights that look at neighbours
(Trockman 2023), sees half of the patches for the first three quarters of the epochs
(Liu 2022), and ``--teacher`` lets it learn the CNN's answers on mixed images instead of
the labels (Beyer 2022).
``--bfloat16`` is faster on CPUs with matrix units for it, much slower on others.
"""

import argparse
import io
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.hooks import RemovableHandle

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.models.split_clients import CLASS_NAMES, MEAN, MODELS, SIDE, STD

PAD, SMOOTHING = 4, 0.1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small client.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--teacher", type=Path, help="weights of a trained CNN")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bfloat16", action="store_true")
    return parser.parse_args()


def files(data: Path) -> Iterable[tuple[str, bytes]]:
    """Every picture as (path inside, bytes)."""
    if data.is_dir():
        for file in sorted(data.rglob("*.jpg")):
            yield file.relative_to(data).as_posix(), file.read_bytes()
        return
    with zipfile.ZipFile(data) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".jpg"):
                yield name, archive.read(name)


def load(data: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Both parts as (images in [0, 1], labels)."""
    found: dict[str, list[tuple[Tensor, int]]] = {"train": [], "test": []}
    for name, content in files(data):
        part, label, _ = name.split("/")
        with Image.open(io.BytesIO(content)) as picture:
            pixels = np.asarray(picture.convert("RGB").resize((SIDE, SIDE)))
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        found[part].append((image, CLASS_NAMES.index(label)))
    return {
        part: (
            torch.stack([i for i, _ in rows]) / 255,
            torch.tensor([n for _, n in rows]),
        )
        for part, rows in found.items()
    }


def normalise(images: Tensor) -> Tensor:
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    return (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """A random crop of the mirrored-out image, and a flip for every second one."""
    count = len(images)
    padded = F.pad(images, (PAD,) * 4, mode="reflect")
    shift = torch.randint(2 * PAD + 1, (2, count, 1), generator=generator)
    rows, columns = shift + torch.arange(SIDE)
    flip = torch.rand(count, generator=generator) < 0.5
    columns[flip] = columns[flip].flip(1)
    at = torch.arange(count)[:, None, None]
    cropped = padded.permute(0, 2, 3, 1)[at, rows[:, :, None], columns[:, None]]
    return cropped.permute(0, 3, 1, 2)


def mix(
    images: Tensor, labels: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang 2018) for half of the images, and smoothed targets."""
    count = len(images)
    chosen = torch.rand(count, generator=generator) < 0.5
    own = 1 - 0.5 * torch.rand(count, generator=generator) * chosen
    other = torch.randperm(count, generator=generator)
    targets = F.one_hot(labels, len(CLASS_NAMES)) * (1 - SMOOTHING)
    targets = targets + SMOOTHING / len(CLASS_NAMES)
    share = own[:, None, None, None]
    mixed = share * images + (1 - share) * images[other]
    share = own[:, None]
    return mixed, share * targets + (1 - share) * targets[other]


@torch.no_grad()
def look_at_neighbours(model: nn.Module, generator: torch.Generator) -> None:
    """Start a ViT as trained ones look (Trockman 2023, "mimetic initialization").

    Positions are sines and cosines of row and column; the product of query and key is
    near the identity, so that tokens find their neighbours by position; the product of
    value and projection is near minus the identity.
    """
    dim = model.pos_embed.shape[-1]
    side = SIDE // model.patch_embed.kernel_size[0]
    rates = 100.0 ** (-torch.arange(dim // 4) / (dim // 4))
    angles = torch.arange(side)[:, None] * rates
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    rows, columns = waves.repeat_interleave(side, 0), waves.repeat(side, 1)
    model.pos_embed[0, 0], model.pos_embed[0, 1:] = 0, torch.cat([rows, columns], 1)
    for block in model.blocks:
        attention = block.attn
        size = dim // attention.heads
        query, key, value = attention.qkv.weight.split(dim)
        for head in range(attention.heads):
            left, right = halves(dim, 0.7, 0.7, generator)
            part = slice(head * size, (head + 1) * size)
            query[part], key[part] = left[:, :size].T, right[:, :size].T
        left, right = halves(dim, 0.4, -0.4, generator)
        value.copy_(left.T)
        attention.proj.weight.copy_(right)


def see_half(model: nn.Module, generator: torch.Generator) -> RemovableHandle:
    """While training, blocks get the class token and a random half of the patches."""

    def choose(blocks: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
        if not blocks.training:
            return None
        (tokens,) = inputs
        count = tokens.shape[1] - 1
        kept = 1 + torch.randperm(count, generator=generator)[: count // 2]
        return tokens[:, torch.cat([torch.zeros(1, dtype=torch.long), kept])]

    return model.blocks.register_forward_pre_hook(choose)


def halves(
    dim: int, noise: float, identity: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Two matrices (dim, dim), the first times the second transposed being
    noise plus a multiple of the identity; columns by falling importance."""
    random = torch.randn(dim, dim, generator=generator) / dim**0.5
    u, s, vh = torch.linalg.svd(noise * random + identity * torch.eye(dim))
    return u * s.sqrt(), vh.T * s.sqrt()


def batches(
    images: Tensor, labels: Tensor, size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of normalised images and their targets."""
    for rows in torch.randperm(len(images), generator=generator).split(size):
        x, targets = mix(augment(images[rows], generator), labels[rows], generator)
        yield normalise(x), targets


def train(
    model: nn.Module,
    teacher: nn.Module | None,
    data: dict[str, tuple[Tensor, Tensor]],
    settings: argparse.Namespace,
) -> None:
    """AdamW with one warm-up and one cosine; one line per epoch."""
    generator = torch.Generator().manual_seed(settings.seed)
    steps = settings.epochs * -(-len(data["train"][0]) // settings.batch)
    optimiser = torch.optim.AdamW(model.parameters(), settings.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.rate, total_steps=max(steps, 2), pct_start=0.2
    )
    begun = time.process_time()
    hook = see_half(model, generator) if settings.model == "vit" else None
    for epoch in range(settings.epochs):
        if hook is not None and epoch >= 0.75 * settings.epochs:
            hook.remove()
        model.train()
        losses = []
        for inputs, targets in batches(*data["train"], settings.batch, generator):
            loss = loss_of(model, teacher, inputs, targets, settings.bfloat16)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        print(
            f"epoch {epoch + 1}/{settings.epochs}: loss {np.mean(losses):.4f}, "
            f"held-out accuracy {accuracy(model, *data['test']):.4f}, "
            f"{time.process_time() - begun:.0f} s of CPU",
            flush=True,
        )


def loss_of(
    model: nn.Module,
    teacher: nn.Module | None,
    inputs: Tensor,
    targets: Tensor,
    half: bool,
) -> Tensor:
    """Cross-entropy to the targets, or to what the teacher says of the same images."""
    # The fused attention is slow backwards in bfloat16 on a CPU.
    with torch.autocast("cpu", torch.bfloat16, half), sdpa_kernel(SDPBackend.MATH):
        if teacher is not None:
            with torch.no_grad():
                targets = teacher(inputs).float().softmax(1)
        logits = model(inputs)
    return F.cross_entropy(logits.float(), targets)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    parts = [model(normalise(part)).argmax(1) for part in images.split(500)]
    return float((torch.cat(parts) == labels).float().mean())


def save(model: nn.Module, file: Path) -> None:
    """Half precision for all but counters."""
    file.parent.mkdir(parents=True, exist_ok=True)
    state = {
        name: value.half().contiguous() if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    save_file(state, file)


def restore(name: str, file: Path) -> nn.Module:
    model = MODELS[name]()
    model.load_state_dict(
        {
            k: v.float() if v.is_floating_point() else v
            for k, v in load_file(file).items()
        }
    )
    return model.eval()


def main() -> None:
    settings = parse()
    torch.manual_seed(settings.seed)
    data = load(settings.data)
    print("images:", ", ".join(f"{len(x)} {part}" for part, (x, _) in data.items()))
    model = MODELS[settings.model]()
    if settings.model == "vit":
        look_at_neighbours(model, torch.Generator().manual_seed(settings.seed))
    teacher = restore("cnn", settings.teacher) if settings.teacher else None
    train(model, teacher, data, settings)
    file = settings.out / f"split_{settings.model}.safetensors"
    save(model, file)
    stored = accuracy(restore(settings.model, file), *data["test"])
    print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB, accuracy {stored:.4f}")


if __name__ == "__main__":
    main()
