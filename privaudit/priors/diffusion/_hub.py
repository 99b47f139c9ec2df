"""Where a pipeline of diffusers lies: a folder, or the cache of the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

from privaudit._weights import shown, why_not_fetched
from privaudit.errors import ConfigError
from privaudit.priors.diffusion._libraries import quiet, require

INDEX = "model_index.json"
NETWORKS = ("unet", "vae", "text_encoder")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ("*.json", "*.txt", "*model.safetensors")
"""Not the weights of other tools, of other precisions, or of all parts in one file."""
_UNWANTED = "safety_checker/*"


def folder_of(source: str) -> Path:
    """The folder of a pipeline; fetched only where ``PRIVAUDIT_DOWNLOAD=1`` asks.

    Args:
        source: A folder, or an identifier of the hub such as ``owner/name``.

    Raises:
        ConfigError: It is nowhere, and fetching is not allowed or failed.
        MissingDependencyError: An identifier, without diffusers.
    """
    place = Path(source).expanduser()
    if place.is_dir():
        return place
    if place.exists() or not _HUB_ID.fullmatch(source):
        raise ConfigError(
            "priors['diffusion']",
            expected="digits, natural, a .safetensors file of `privaudit prior train`, "
            "the folder of a diffusers pipeline, or its identifier owner/name",
            got=f"{source!r}, {'a file' if place.exists() else 'none of them'}",
            hint="Check the spelling; a single file of weights has to be converted "
            "with diffusers first (from_single_file, then save_pretrained).",
        )
    require()
    known = _snapshot(source, local=True)
    missing = lacking(known) if isinstance(known, Path) else "all of it"
    if isinstance(known, Path) and not missing:
        return known
    fetched = why_not_fetched() or _snapshot(source, local=False)
    if isinstance(fetched, Path):
        return fetched
    raise ConfigError(
        f"prior {source!r}",
        expected="a folder, or a pipeline in the cache of the Hugging Face hub",
        got=f"no such folder, and {missing} is missing there; {fetched}",
        hint=advice(source),
    )


def advice(source: str) -> str:
    """How to get the folder, also for a machine without a network."""
    known = _HUB_ID.fullmatch(source) and not Path(source).expanduser().is_dir()
    name = source if known else "OWNER/NAME"
    return (
        f"With a network: `{command(name)}`, copy FOLDER over, and name it; or set "
        "PRIVAUDIT_DOWNLOAD=1 and name the identifier."
    )


def command(name: str) -> str:
    """The command that fetches what a prior needs of a repository, and no more."""
    wanted = " ".join(f"--include '{pattern}'" for pattern in _WANTED)
    return f"hf download {name} --local-dir FOLDER {wanted} --exclude '{_UNWANTED}'"


def classes(folder: Path) -> dict[str, str]:
    """Class of each part by name, as the index of the pipeline says.

    Raises:
        ConfigError: No index, or a damaged one.
    """
    try:
        found = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        parts = {n: v[1] for n, v in found.items() if isinstance(v, list) and v[1]}
    except FileNotFoundError as error:
        inside = sorted(p.name for p in folder.iterdir())
        raise ConfigError(
            shown(folder), expected=f"the folder of a diffusers pipeline, with {INDEX}",
            got=", ".join(inside[:6]) or "an empty folder", hint=advice(str(folder)),
        ) from error  # fmt: skip
    except (OSError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(
            shown(folder / INDEX), expected="the index of a diffusers pipeline",
            got=f"{type(error).__name__}: {error}", hint="Copy or fetch it again.",
        ) from error  # fmt: skip
    return parts


def place_of(folder: Path, part: str) -> Path:
    """Where a part lies: old pipelines of a single network have no subfolders."""
    return folder / part if (folder / part).is_dir() else folder


def lacking(folder: Path) -> str:
    """The first part without weights, or the index; empty: nothing is missing."""
    if not (folder / INDEX).is_file():
        return INDEX
    parts = classes(folder)
    for part in (name for name in NETWORKS if name in parts):
        files = place_of(folder, part).iterdir()
        if not any(f.suffix in (".safetensors", ".bin") for f in files):
            return f"{part}/"
    return ""


def variant(place: Path) -> str | None:
    """``fp16`` where a folder has no other weights; None: the usual ones."""
    files = [p.name for p in place.iterdir() if p.suffix in (".safetensors", ".bin")]
    half = [name for name in files if ".fp16." in name]
    return "fp16" if half and len(half) == len(files) else None


def _snapshot(source: str, *, local: bool) -> Path | str:
    """The folder, or why there is none. Old repositories have nothing but ``.bin``."""
    from huggingface_hub import snapshot_download

    patterns = [*_WANTED]
    try:
        with quiet():
            for _ in range(2):
                folder = Path(snapshot_download(
                    source, local_files_only=local, allow_patterns=patterns,
                    ignore_patterns=_UNWANTED,
                ))  # fmt: skip
                if local or not lacking(folder):
                    break
                patterns.append("*model.bin")
    except (OSError, ValueError, RuntimeError) as error:
        return f"fetching it failed: {type(error).__name__}: {_first_line(error)}"
    return folder


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:200]
