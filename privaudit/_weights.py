"""Pretrained weights: where they are looked for, in which order, how they are checked.

A folder that the user names, then the caches of torch.hub and of the Hugging Face hub;
nothing is fetched unless ``PRIVAUDIT_DOWNLOAD=1`` asks for it, and never while an
offline flag is set. Weights that are not there are an error with the reason: nothing
runs on random ones.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "PRIVAUDIT_WEIGHTS"
DOWNLOAD = "PRIVAUDIT_DOWNLOAD"
OFFLINE = ("PRIVAUDIT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_BROKEN = (OSError, EOFError, RuntimeError, ValueError, LookupError, AttributeError)
"""What readers of damaged files raise, beside errors of their own."""
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Weights:
    """A file of weights that anybody can fetch.

    Attributes:
        what: The network and what it was trained on, in words.
        names: File names, the publisher's own first.
        url: Where the publisher has the first of them.
        sha256: Of the first of them; empty where no digest is published.
        repos: Repositories of the Hugging Face hub that hold the same weights.
        hub_files: What the file is called there.
    """

    what: str
    names: tuple[str, ...]
    url: str
    sha256: str = ""
    repos: tuple[str, ...] = ()
    hub_files: tuple[str, ...] = _HUB_FILES


@dataclass(frozen=True)
class Found:
    """A file, and when it last changed: what was read of it holds until then."""

    path: Path
    changed_ns: int

    @classmethod
    def at(cls, path: Path) -> Found:
        """The file as it is now."""
        return cls(path, path.stat().st_mtime_ns)


def locate(weights: Weights, folder: str | None = None) -> Found:
    """The first place that holds the file.

    Args:
        weights: What is wanted.
        folder: Looked at first; None takes the one of ``PRIVAUDIT_WEIGHTS``.

    Raises:
        ConfigError: It is nowhere, and fetching is not allowed or failed.
    """
    for place in _places(weights, folder):
        if place.is_file():
            return Found.at(place)
    target = _torch_cache() / weights.names[0]
    failure = why_not_fetched() or _fetch(weights.url, target, weights.sha256)
    if failure:
        raise _nowhere(weights, folder, failure)
    return Found.at(target)


def read_state(file: Found, sha256: str = "") -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` or a ``torch.save`` file, by name, on the CPU.

    Args:
        file: Where they are. Pickled code in it is never run.
        sha256: What the file must have; empty checks nothing.

    Raises:
        ConfigError: Another digest, or no file of named tensors.
    """
    found = _digest(file) if sha256 else ""
    if found != sha256:
        raise ConfigError(
            shown(file.path),
            expected=f"SHA-256 {sha256}",
            got=found,
            hint="It is damaged or another file: fetch it again, or say that its "
            "digest is not to be checked (verify=False).",
        )
    return _tensors(file.path)


def offline() -> str:
    """The flag that forbids connections; empty where none is set."""
    return next((flag for flag in OFFLINE if _is_set(flag)), "")


def why_not_fetched() -> str:
    """What forbids connections; empty where they are allowed."""
    if not _is_set(DOWNLOAD):
        return f"not fetched since {DOWNLOAD}=1 is not set"
    return f"not fetched since {offline()} is set" if offline() else ""


def shown(path: Path) -> str:
    """A path for messages and reports: without the name of the user's home."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _places(weights: Weights, folder: str | None) -> Iterator[Path]:
    own = folder or os.environ.get(FOLDER)
    for name in weights.names if own else ():
        yield Path(own or "").expanduser() / name
    yield _torch_cache() / weights.names[0]
    for repo in weights.repos:
        snapshots = _hub_cache() / f"models--{repo.replace('/', '--')}" / "snapshots"
        for file in weights.hub_files:
            yield from sorted(snapshots.glob(f"*/{file}"))


def _torch_cache() -> Path:
    import torch

    return Path(torch.hub.get_dir()) / "checkpoints"


def _hub_cache() -> Path:
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HF_HOME") or Path(base) / "huggingface") / "hub"


def _is_set(flag: str) -> bool:
    return os.environ.get(flag, "").strip().lower() in {"1", "true", "yes", "on"}


@lru_cache
def _fetch(url: str, target: Path, sha256: str) -> str:
    """Fetch a file, once a process; why it failed, or nothing."""
    from urllib.error import URLError

    import torch

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(target), sha256 or None, progress=False)
    except (URLError, OSError, RuntimeError) as error:
        return f"fetching it failed: {error}"
    return ""


def _nowhere(weights: Weights, folder: str | None, failure: str) -> ConfigError:
    own = folder or os.environ.get(FOLDER)
    looked = [Path(own).expanduser()] if own else []
    looked += [_torch_cache(), *([_hub_cache()] if weights.repos else [])]
    places = ", ".join(shown(place) for place in looked)
    return ConfigError(
        f"weights of {weights.what}",
        expected=f"a file {' or '.join(weights.names)}",
        got=f"none in {places}; {failure}",
        hint=f"Get it from {weights.url}, put it into a folder and name that folder "
        f"in {FOLDER}.",
    )


@lru_cache
def _digest(file: Found) -> str:
    """SHA-256 of a file; hashed again only when it has changed."""
    with file.path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _tensors(file: Path) -> dict[str, Tensor]:
    from pickle import UnpicklingError

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (*_BROKEN, UnpicklingError, SafetensorError) as error:
        raise _unreadable(file, f"{type(error).__name__}: {error}") from error
    if not isinstance(state, dict) or not all(
        isinstance(value, torch.Tensor) for value in state.values()
    ):
        raise _unreadable(file, type(state).__name__)
    return dict(state)


def _unreadable(file: Path, got: str) -> ConfigError:
    return ConfigError(
        shown(file),
        expected="a file of named tensors",
        got=" ".join(got.split())[:200],
        hint="Fetch it again.",
    )
