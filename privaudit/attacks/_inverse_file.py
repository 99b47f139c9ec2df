"""The file of an inverse network: safetensors, with what it was made for as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from privaudit import __version__
from privaudit._provenance import model_digest
from privaudit.attacks._inverse_decoders import decoder_for
from privaudit.attacks._inverse_training import LearnedInverse, Trained, features_of
from privaudit.config import FeatureKind
from privaudit.errors import ConfigError
from privaudit.types import FeatureLayout

if TYPE_CHECKING:
    from privaudit.types import FeatureTarget

FORMAT = "privaudit-inverse-network"
KEY = "privaudit"
PROBE = "probe"
SAME = 1e-2
"""Relative difference that another device may make to the probe's features."""
_PROBE_VALUES = 4096


class InverseFacts(BaseModel):
    """What a network was trained for; nothing about the images it learnt from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["privaudit-inverse-network"] = "privaudit-inverse-network"
    version: Literal["1"] = "1"
    privaudit: str = __version__
    settings: dict[str, Any]
    """Of the attack that trained it."""
    cut: str
    """Where the client is cut, as users write it."""
    layout: FeatureKind
    prefix_tokens: int
    grid: tuple[int, int] | None
    feature_shape: tuple[int, ...]
    """Of one image's features."""
    image_shape: tuple[int, int, int]
    model_digest: str
    """Of the whole model, for the record: what counts is the part before the cut."""
    images: int
    """How many it learnt from."""
    iterations: int
    error: float
    """Mean squared error on [0, 1] at the end of training."""


def save(
    path: str | Path,
    trained: Trained,
    target: FeatureTarget,
    settings: dict[str, Any],
    image_shape: tuple[int, int, int],
) -> Path:
    """Write a trained network with what it was made for.

    Args:
        path: Where to.
        trained: What training gave.
        target: Model and cut that it was trained for.
        settings: Of the attack that trained it.
        image_shape: (channels, height, width).

    Raises:
        ConfigError: The place cannot be written.
    """
    from safetensors.torch import save_file

    probe = probe_of(target, image_shape)
    facts = _facts(trained, target, settings, image_shape, probe)
    tensors = {n: t.cpu().contiguous() for n, t in trained.network.state_dict().items()}
    tensors[PROBE] = _thinned(probe)
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, file, metadata={KEY: facts.model_dump_json()})
    except OSError as error:
        raise ConfigError(
            str(path), expected="a place to write", got=error.strerror or str(error),
            hint="Choose another place.",
        ) from error  # fmt: skip
    return file


def _facts(
    trained: Trained,
    target: FeatureTarget,
    settings: dict[str, Any],
    image_shape: tuple[int, int, int],
    probe: Tensor,
) -> InverseFacts:
    layout = target.exposure.layout
    return InverseFacts(
        settings=settings,
        cut=cut_name(target),
        layout=layout.kind,
        prefix_tokens=layout.prefix_tokens,
        grid=layout.grid,
        feature_shape=tuple(probe.shape),
        image_shape=image_shape,
        model_digest=model_digest(target.model),
        images=trained.images,
        iterations=trained.iterations,
        error=trained.error,
    )


def load(
    path: str | Path, target: FeatureTarget, image_shape: tuple[int, int, int]
) -> Trained:
    """Read what :func:`save` wrote, for the client that it was made for.

    Raises:
        ConfigError: Not there, damaged, of something else, or made for another cut,
            another shape, or other weights before the cut.
    """
    file = Path(path)
    tensors, text = _read(file)
    facts = _facts_of(file, text)
    probe = probe_of(target, image_shape)
    _require_same(file, facts, target, image_shape, probe)
    _require_weights(file, tensors.pop(PROBE, None), probe)
    network = _rebuilt(file, facts, tensors, probe.device)
    return Trained(network, facts.images, facts.iterations, facts.error)


def probe_of(target: FeatureTarget, image_shape: tuple[int, int, int]) -> Tensor:
    """The features of one image of noise, always the same: they tell clients apart."""
    noise = torch.rand((1, *image_shape), generator=torch.Generator().manual_seed(0))
    return features_of(target, noise)[0]


def cut_name(target: FeatureTarget) -> str:
    """The cut as users write it."""
    return str(target.exposure.cut.name)


def _thinned(probe: Tensor) -> Tensor:
    flat = probe.flatten().cpu()
    return flat[:: max(1, len(flat) // _PROBE_VALUES)].contiguous()


def _read(file: Path) -> tuple[dict[str, Tensor], str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {n: opened.get_tensor(n) for n in opened.keys()}  # noqa: SIM118
            text = (opened.metadata() or {}).get(KEY, "")
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            str(file), expected="the file of an inverse network", got=str(error),
            hint="Train one, or copy the file again.",
        ) from error  # fmt: skip
    return tensors, text


def _facts_of(file: Path, text: str) -> InverseFacts:
    try:
        return InverseFacts.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise ConfigError(
            str(file), expected=f"{FORMAT}, version 1",
            got="a safetensors file of something else, or of another version",
            hint="Train an inverse network with this version of privaudit.",
        ) from error  # fmt: skip


def _require_same(
    file: Path,
    facts: InverseFacts,
    target: FeatureTarget,
    image_shape: tuple[int, int, int],
    probe: Tensor,
) -> None:
    layout = target.exposure.layout
    pairs = [
        ("the cut", facts.cut, cut_name(target)),
        ("images of shape", facts.image_shape, image_shape),
        ("features of shape", facts.feature_shape, tuple(probe.shape)),
        ("the layout", facts.layout, layout.kind),
        ("prefix tokens", facts.prefix_tokens, layout.prefix_tokens),
        ("the patch grid", facts.grid, layout.grid),
    ]
    for what, theirs, ours in pairs:
        if theirs != ours:
            raise ConfigError(
                str(file),
                expected=f"{what} {ours}, as in this audit",
                got=f"{what} {theirs}",
                hint="Train an inverse network for this cut of this model.",
            )


def _require_weights(file: Path, theirs: Tensor | None, probe: Tensor) -> None:
    ours = _thinned(probe)
    apart = float("inf")
    if theirs is not None and theirs.shape == ours.shape:
        apart = float((theirs - ours).norm() / ours.norm().clamp_min(1e-12))
    if not apart <= SAME:
        raise ConfigError(
            str(file),
            expected="a network trained for this model up to the cut",
            got=f"one whose features of the same image differ by {apart:.1%}",
            hint="The model has other weights or another normalisation: train an "
            "inverse network for it.",
        )


def _rebuilt(
    file: Path, facts: InverseFacts, tensors: dict[str, Tensor], device: torch.device
) -> nn.Module:
    layout = FeatureLayout(facts.layout, facts.prefix_tokens, facts.grid)
    try:
        decoder = decoder_for(
            layout, facts.feature_shape, facts.image_shape,
            width=int(facts.settings["width"]), layers=int(facts.settings["layers"]),
            generator=torch.Generator(),
        )  # fmt: skip
        network = LearnedInverse(decoder, tensors["mean"], tensors["scale"])
        network.load_state_dict(tensors)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(
            str(file), expected="the weights that its facts describe",
            got=str(error).splitlines()[0], hint="The file was changed: train again.",
        ) from error  # fmt: skip
    return network.to(device).eval().requires_grad_(False)
