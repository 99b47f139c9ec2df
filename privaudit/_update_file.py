"""The file of an update: safetensors, with what is known about it as JSON metadata."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from privaudit import __version__
from privaudit.config import OptimizerName
from privaudit.errors import ConfigError
from privaudit.tape import Draw, Tape

FORMAT = "privaudit-update"
FORMAT_VERSION = "1"
KEY = "privaudit"
MASK = "privaudit-mask/"

StepMode = Literal["train", "eval", "mixed"]


class MaskFacts(BaseModel):
    """One draw of a forward pass, without its tensor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    call: int
    kind: str
    p: float | None
    hidden: bool
    replayable: bool
    tensor: str | None
    """Name of its tensor in the file; None where nothing was drawn."""


class UpdateFacts(BaseModel):
    """What is known about an update beside its numbers: nothing about the images."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["privaudit-update"] = "privaudit-update"
    version: Literal["1"] = "1"
    source: Literal["recorded step", "gradients", "weight difference"] = "gradients"
    model: str = ""
    """Class of the model; empty where nobody said."""
    privaudit: str = __version__
    torch: str = Field(default_factory=lambda: str(torch.__version__))
    reduction: Literal["unknown"] = "unknown"
    """Whether the loss was a mean or a sum over the batch does not show."""
    mode: StepMode | None = None
    """Modes of the modules during the step; None where nobody looked."""
    autocast: Literal["bfloat16", "float16"] | None = None
    """What autocast cast to when the model was called; None: off, or nobody looked."""
    image_shape: tuple[int, int, int] | None = None
    """(channels, height, width) that the model was given; None where nobody looked."""
    micro_batches: int | None = None
    """Backward passes that were added up."""
    lr: float | None = None
    """Of a weight difference: what it was divided by."""
    local_steps: int = 1
    """Of a weight difference: how many steps made it."""
    optimizer: OptimizerName = "sgd"
    """Of a weight difference."""
    momentum: float = 0.0
    """Of a weight difference by SGD."""
    rounding: float | None = None
    """Of a weight difference: relative error that the subtraction leaves, at most."""
    absent: list[str] = Field(default_factory=list)
    """Trainable parameters that took no part in the step."""
    weights: dict[str, str] = Field(default_factory=dict)
    """Digest per tensor of the weights before the step; empty: not known."""
    masks: list[list[MaskFacts]] = Field(default_factory=list)
    """Per forward pass its draws, only where the owner saved them on purpose."""


def save(
    path: Path,
    gradients: Mapping[str, Tensor],
    facts: UpdateFacts,
    tapes: tuple[Tape, ...],
) -> Path:
    """Write one file; see :meth:`privaudit.recording.Update.save`."""
    from safetensors.torch import save as to_bytes

    listed, values = _unrolled(tapes)
    facts = facts.model_copy(update={"masks": listed})
    tensors = {n: g.contiguous() for n, g in gradients.items()} | values
    return _write(path, to_bytes(tensors, metadata={KEY: facts.model_dump_json()}))


def _unrolled(
    tapes: tuple[Tape, ...],
) -> tuple[list[list[MaskFacts]], dict[str, Tensor]]:
    listed, tensors = [], {}
    for number, tape in enumerate(tapes):
        rows = []
        for index, draw in enumerate(tape):
            name = None if draw.value is None else f"{MASK}{number}/{index:05d}"
            if name is not None and draw.value is not None:
                tensors[name] = draw.value.detach().cpu().clone().contiguous()
            rows.append(
                MaskFacts(
                    path=draw.path, call=draw.call, kind=draw.kind, p=draw.p,
                    hidden=draw.hidden, replayable=draw.replayable, tensor=name,
                )
            )  # fmt: skip
        listed.append(rows)
    return listed, tensors


def rolled(
    file: Path, facts: UpdateFacts, tensors: Mapping[str, Tensor]
) -> tuple[Tape, ...]:
    """The recorded masks, out of the facts and their tensors."""
    wanted = {d.tensor for rows in facts.masks for d in rows if d.tensor is not None}
    there = {n for n in tensors if n.startswith(MASK)}
    for name in sorted(wanted ^ there):
        raise ConfigError(
            f"{file}: {name!r}",
            expected="the masks that the file lists",
            got="none of that name" if name in wanted else "a mask that it omits",
            hint="The file was changed after it was saved; save it again.",
        )
    return tuple(
        Tape(
            tuple(
                Draw(
                    d.path, d.call, d.kind,
                    None if d.tensor is None else tensors[d.tensor],
                    d.p, d.hidden, d.replayable,
                )
                for d in rows
            )
        )
        for rows in facts.masks
    )  # fmt: skip


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {n: opened.get_tensor(n) for n in opened.keys()}  # noqa: SIM118
            return tensors, opened.metadata() or {}
    except OSError as error:
        raise ConfigError(
            str(file),
            expected="a readable file",
            got=error.strerror or str(error),
            hint="Give the file that step.save(path) wrote.",
        ) from error
    except SafetensorError as error:
        raise ConfigError(
            str(file),
            expected="a complete safetensors file",
            got=f"something else, or a truncated file ({error})",
            hint="Copy it again; write it with step.save(path).",
        ) from error


def facts_of(file: Path, metadata: Mapping[str, str]) -> UpdateFacts:
    """The facts in the metadata, where this version can read them."""
    hint = (
        "Load foreign files yourself and pass Update.from_gradients(tensors); read "
        "others with the version of privaudit that wrote them."
    )
    text = metadata.get(KEY)
    if text is None:
        raise ConfigError(
            str(file), expected="an update that step.save(path) wrote",
            got="a safetensors file of something else", hint=hint,
        )  # fmt: skip
    try:
        data = json.loads(text)
        version = data.get("version")
        if data.get("format") == FORMAT and version == FORMAT_VERSION:
            return UpdateFacts.model_validate(data)
    except (ValueError, AttributeError, ValidationError) as error:
        raise ConfigError(
            str(file), expected="facts as this version writes them",
            got=f"damaged ones ({str(error).splitlines()[0]})", hint=hint,
        ) from error  # fmt: skip
    raise ConfigError(
        str(file), expected=f"{FORMAT}, version {FORMAT_VERSION}",
        got=f"{data.get('format')}, version {version}", hint=hint,
    )  # fmt: skip


def _write(path: Path, data: bytes) -> Path:
    """Complete or not at all, mode 0600."""
    temporary = path.parent / f".privaudit-{secrets.token_hex(8)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(
            str(path),
            expected=f"a place to write {len(data):,} bytes",
            got=error.strerror or str(error),
            hint="Choose another place; an older file there is unchanged.",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return path
