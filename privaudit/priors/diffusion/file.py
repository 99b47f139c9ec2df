"""The file of an embedded prior: safetensors in half precision, its card as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import torch
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
    network: UNet, facts: NetworkFacts, device: torch.device
) -> DiffusionModel:
    """A network of ours as a prior on pixels."""
    network = network.to(device)
    channels = facts.card.channels

    def latent_shape(shape: Shape) -> Shape:
        if shape[0] != channels or min(shape[1:]) < SMALLEST:
            raise ConfigError(
                f"prior {facts.card.name!r}",
                expected=f"images of {channels} channel(s), {SMALLEST} pixels at least",
                got=f"{shape[0]} channel(s), {shape[1]}×{shape[2]} pixels",
                hint="Take a prior for such images, or train one: "
                "`privaudit prior train`.",
            )
        return shape

    def same(images: Tensor) -> Tensor:
        return images

    return DiffusionModel(
        predict=network,
        alphas=cosine_alphas(facts.levels),
        prediction=facts.prediction,
        decode=same,
        encode=same,
        latent_shape=latent_shape,
        clip=True,
        card=facts.card,
    )


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
