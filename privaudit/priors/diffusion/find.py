"""Which diffusion prior a user or an attack means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from privaudit.errors import ConfigError
from privaudit.priors.diffusion.base import DiffusionModel, DiffusionPrior

if TYPE_CHECKING:
    import torch

AUTO = "auto"


def for_channels(channels: int) -> str | None:
    """The embedded prior for images of so many channels; None: there is none."""
    return {1: "digits", 3: "natural"}.get(channels)


def loaded(
    given: object, family: Mapping[str, type[DiffusionPrior]], device: torch.device
) -> DiffusionModel:
    """A prior in memory, from whatever names it.

    Args:
        given: A name, a file of ``privaudit prior train``, a folder or an identifier
            of the hub that diffusers can read, a prior, or one in memory.
        family: Priors by name.
        device: Where it is to run.

    Raises:
        ConfigError: Nothing of this, or what it names cannot be loaded.
    """
    if isinstance(given, DiffusionModel):
        return given
    if isinstance(given, DiffusionPrior):
        return given.load(device)
    if isinstance(given, (str, Path)):
        return named(given, family).load(device)
    raise ConfigError(
        "priors['diffusion']",
        expected="a name, a path, or a diffusion prior",
        got=type(given).__name__,
        hint=f"Names: {', '.join(n for n in family if n in ('digits', 'natural'))}.",
    )


def named(
    given: str | Path, family: Mapping[str, type[DiffusionPrior]]
) -> DiffusionPrior:
    """The prior that a text means; whether it is there is not looked at."""
    text = str(given)
    if text in ("digits", "natural"):
        return family[text]()
    if text.endswith(".safetensors"):
        return family["trained"](path=given)  # type: ignore[call-arg]
    return family["diffusers"](source=text)  # type: ignore[call-arg]
