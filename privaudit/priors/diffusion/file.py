"""The file of an embedded prior: safetensors in half precision, its card as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from privaudit.errors import ConfigError
from privaudit.priors.diffusion.base import DiffusionModel, Shape
from privaudit.priors.diffusion.card import NetworkFacts
from privaudit.priors.diffusion.schedule import cosine_alphas
from privaudit.priors.diffusion.unet import UNet

KEY = "privaudit"
SMALLEST = 8
"""Pixels of a side below which a network that halves it three times has no room."""


def save(path: Path, network: UNet, facts: NetworkFacts) -> Path:
    """Write weights in half precision, under a temporary name first.

    Raises:
        ConfigError: The place cannot be written.
    """
    from safetensors.torch import save_file

    state = {n: t.half().cpu().contiguous() for n, t in network.state_dict().items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.part")
        save_file(state, partial, metadata={KEY: facts.model_dump_json()})
        partial.replace(path)
    except OSError as error:
        raise ConfigError(
            str(path), expected="a place to write", got=error.strerror or str(error),
            hint="Choose another place.",
        ) from error  # fmt: skip
    return path


def load(path: Path) -> tuple[UNet, NetworkFacts]:
    """Read what :func:`save` wrote; weights in float32, frozen.

    Raises:
        ConfigError: Not there, damaged, or the file of something else.
    """
    tensors, text = _read(path)
    try:
        facts = NetworkFacts.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise ConfigError(
            str(path), expected="privaudit-prior, version 1",
            got="a safetensors file of something else, or of another version",
            hint="Train one with `privaudit prior train`.",
        ) from error  # fmt: skip
    with torch.device("meta"):  # nothing is drawn that the file then replaces
        network = UNet(facts.card.channels, facts.widths, facts.time_width)
    state = {n: t.float() for n, t in tensors.items()}
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ConfigError(
            str(path), expected="the weights that its card describes",
            got=str(error).splitlines()[0], hint="The file was changed: train again.",
        ) from error  # fmt: skip
    return network.eval().requires_grad_(False), facts


def in_memory(
    network: UNet, facts: NetworkFacts, device: torch.device, *, whole: bool = False
) -> DiffusionModel:
    """A network of ours as a prior on pixels.

    Args:
        network: What was read.
        facts: What it is.
        device: Where it is to run.
        whole: Draw every pixel of large images. By default those of twice the side
            that it learnt, or more, are drawn at half, a quarter … of their size, and
            enlarged: it knows what a scene looks like at the scale that it has seen.
    """
    network = network.to(device)
    channels = facts.card.channels
    learnt = min(facts.card.size) if facts.card.size else 0

    def latent_shape(shape: Shape) -> Shape:
        if shape[0] != channels or min(shape[1:]) < SMALLEST:
            raise ConfigError(
                f"prior {facts.card.name!r}",
                expected=f"images of {channels} channel(s), {SMALLEST} pixels at least",
                got=f"{shape[0]} channel(s), {shape[1]}×{shape[2]} pixels",
                hint="Take a prior for such images, or train one: "
                "`privaudit prior train`.",
            )
        factor = 1 if whole else _factor(shape, learnt)
        return shape[0], shape[1] // factor, shape[2] // factor

    def same(images: Tensor) -> Tensor:
        return images

    def smaller(images: Tensor) -> Tensor:
        shape = images.shape[1:]
        wanted = latent_shape((shape[0], shape[1], shape[2]))
        if tuple(shape) == wanted:
            return images
        return F.interpolate(
            images, wanted[1:], mode="bilinear", antialias=True, align_corners=False
        )

    return DiffusionModel(
        predict=network,
        alphas=cosine_alphas(facts.levels),
        prediction=facts.prediction,
        decode=same,
        encode=smaller,
        latent_shape=latent_shape,
        clip=True,
        card=facts.card,
    )


def _factor(shape: Shape, learnt: int) -> int:
    """The power of two by which an image is at least the side that was learnt."""
    factor = 1
    while learnt and min(shape[1:]) >= 2 * factor * learnt:
        factor *= 2
    return factor


def _read(path: Path) -> tuple[dict[str, Tensor], str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {n: opened.get_tensor(n) for n in opened.keys()}  # noqa: SIM118
            return tensors, (opened.metadata() or {}).get(KEY, "")
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            str(path), expected="the file of a prior", got=str(error),
            hint="Train one with `privaudit prior train`, or copy the file again.",
        ) from error  # fmt: skip
