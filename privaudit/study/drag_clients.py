"""The client models of Lei 2025, with published weights or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit._weights import Found, Weights, locate, read_state, shown
from privaudit.adapters import facts_of
from privaudit.adapters.base import IMAGENET, OPENAI_CLIP, layer_points
from privaudit.errors import ConfigError, MissingDependencyError

SIDE = 224
"""Of the images that the clients take."""
_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_HUB = "https://huggingface.co/{}/resolve/main/{}"


def _weights(what: str, name: str, repo: str, files: tuple[str, ...]) -> Weights:
    url = _HUB.format(repo, files[0])
    return Weights(what, (name,), url, repos=(repo,), hub_files=files)


WEIGHTS = {
    "CLIP-ViT-B/16": _weights(
        "CLIP ViT-B/16 (OpenAI)", "clip-vit-b-16.safetensors",
        "timm/vit_base_patch16_clip_224.openai", _CLIP_FILES,
    ),
    "CLIP-RN50": _weights(
        "CLIP RN50 (OpenAI)", "clip-rn50.safetensors",
        "timm/resnet50_clip.openai", _CLIP_FILES,
    ),
    "DINOv2-Base": _weights(
        "DINOv2-Base", "dinov2-base.safetensors",
        "facebook/dinov2-base", ("model.safetensors", "pytorch_model.bin"),
    ),
}  # fmt: skip
"""As open_clip and transformers name the tensors."""
CUTS = {
    "CLIP-ViT-B/16": layer_points("ln_pre", "transformer.resblocks.{}", 12),
    "CLIP-RN50": {"block 1": "avgpool"} | {f"block {n + 1}": f"layer{n}"
                                           for n in range(1, 5)},
    "DINOv2-Base": layer_points("embeddings", "encoder.layer.{}", 12),
}  # fmt: skip
"""What adapters say of these models, for messages before the weights are there."""


@dataclass(frozen=True, eq=False)
class ClientModel:
    """A model that a device may run a part of.

    Attributes:
        module: In eval mode.
        normalisation: From [0, 1] to what it takes.
        points: Split points of the paper, such as ``Layer 12``, by their names.
        side: Of its images, in pixels.
    """

    module: nn.Module
    normalisation: Normalisation
    points: dict[str, str]
    side: int = SIDE


def client_model(name: str) -> ClientModel:
    """One of :data:`WEIGHTS`, with its published weights.

    Raises:
        ConfigError: They are not there, or are another network's.
        MissingDependencyError: The library that builds it is not installed.
    """
    return as_client(_loaded(name, locate(WEIGHTS[name])), name)


def clip_vit_b_16() -> nn.Module:
    """For ``--model``: CLIP ViT-B/16 with its weights."""
    return client_model("CLIP-ViT-B/16").module


def clip_rn50() -> nn.Module:
    """For ``--model``: CLIP RN50 with its weights."""
    return client_model("CLIP-RN50").module


def dinov2_base() -> nn.Module:
    """For ``--model``: DINOv2-Base with its weights."""
    return client_model("DINOv2-Base").module


def command(name: str) -> str:
    """What fetches the weights of a client."""
    weights = WEIGHTS[name]
    return (
        f"curl -L {weights.url} -o FOLDER/{weights.names[0]}; export "
        "PRIVAUDIT_WEIGHTS=FOLDER"
    )


def training(name: str, split: str, file: str) -> str:
    """What trains an inverse network of a client and saves it as ``file``."""
    mean, std = IMAGENET if name == "DINOv2-Base" else OPENAI_CLIP
    factory = name.lower().replace("/", "-").replace("-", "_")
    return (
        "privaudit inverse-network train --model privaudit.study.drag_clients:"
        f"{factory} --split {CUTS[name][split.lower()]} --size {SIDE} --image-mode RGB "
        f"--mean {','.join(map(str, mean))} --std {','.join(map(str, std))} "
        f"--public FOLDER --out {file}"
    )


def as_client(module: nn.Module, name: str) -> ClientModel:
    """A model with what an adapter knows about it.

    Raises:
        ConfigError: No adapter does.
    """
    facts = facts_of(module)
    if facts is None or facts.mean is None or not facts.split_points:
        raise ConfigError(
            name,
            expected="a model with known split points and normalisation",
            got=type(module).__name__,
            hint="An adapter has to know it (privaudit/adapters).",
        )
    points = {label.capitalize(): path for label, path in facts.split_points.items()}
    return ClientModel(module, Normalisation(facts.mean, facts.std), points)


@lru_cache(maxsize=3)
def _loaded(name: str, file: Found) -> nn.Module:
    """Built on random weights, every one of which is then replaced."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "CLIP-ViT-B/16": lambda: _clip("ViT-B-16-quickgelu"),
        "CLIP-RN50": lambda: _clip("RN50-quickgelu"),
        "DINOv2-Base": _dinov2,
    }
    state = read_state(file)
    with torch.random.fork_rng(devices=[]):
        network = makers[name]()
    _fill(network, state, file)
    return network.eval().requires_grad_(False)


def _clip(name: str) -> nn.Module:
    try:
        import open_clip
    except ImportError as error:
        raise _without("open_clip", error) from error
    with _silent():
        return open_clip.create_model(name, pretrained=None).visual  # type: ignore[no-any-return]


def _dinov2() -> nn.Module:
    try:
        from transformers import Dinov2Config, Dinov2Model
    except ImportError as error:
        raise _without("transformers", error) from error
    config = Dinov2Config(image_size=518, patch_size=14)
    return Dinov2Model(config)  # type: ignore[no-any-return]


def _without(package: str, error: ImportError) -> MissingDependencyError:
    return MissingDependencyError(
        "reproduce drag", expected=f"the package {package}", got=str(error),
        hint='Install it: pip install "privaudit[zoo]".',
    )  # fmt: skip


@contextmanager
def _silent() -> Iterator[None]:
    """open_clip warns of random weights, which do not stay."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def _fill(network: nn.Module, state: dict[str, Tensor], file: Found) -> None:
    """Every parameter and buffer out of ``state``; none may stay random.

    Raises:
        ConfigError: One is missing there, or has another shape.
    """
    prefixes = ("", "visual.", "dinov2.")
    wanted = {
        n: v for n, v in network.state_dict().items()
        if not n.endswith("num_batches_tracked")
    }  # fmt: skip
    best = max(prefixes, key=lambda p: sum(p + n in state for n in wanted))
    wrong = [
        n for n, v in wanted.items()
        if best + n not in state or state[best + n].shape != v.shape
    ]  # fmt: skip
    if wrong:
        raise ConfigError(
            shown(file.path),
            expected=f"all {len(wanted)} tensors of the network",
            got=f"{len(wrong)} missing or of another shape, first {wrong[0]}",
            hint="It is another network: fetch the file that the documentation names.",
        )
    network.load_state_dict({n: state[best + n].float() for n in wanted}, strict=False)
