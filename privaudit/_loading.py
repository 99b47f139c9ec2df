"""From the command line's words to a model, its weights, images and labels."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privaudit.errors import ConfigError, NothingToAuditError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

IMAGE_SUFFIXES = {
    ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip
_WRAPPERS = ("module.", "_orig_mod.")


def load_model(spec: str) -> nn.Module:
    """Call the factory named by ``package.module:factory`` or ``path.py:factory``.

    Raises:
        ConfigError: The place, the factory or what it returns cannot be used.
    """
    from torch import nn

    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ConfigError(
            "--model",
            expected="package.module:factory or path.py:factory",
            got=repr(spec),
            hint="Name the function that builds the model.",
        )
    module = _import(place)
    try:
        factory = getattr(module, name)
    except AttributeError:
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(
            "--model",
            expected=f"a factory in {place}",
            got=f"no {name!r} there",
            hint=f"It has: {', '.join(sorted(public)[:20])}.",
        ) from None
    model = factory if isinstance(factory, nn.Module) else factory()
    if not isinstance(model, nn.Module):
        raise ConfigError(
            "--model",
            expected="a factory that returns an nn.Module",
            got=type(model).__name__,
            hint="Return the module itself.",
        )
    return model


def _import(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ConfigError(
                "--model",
                expected=f"a module {place}",
                got=str(error),
                hint="Run from the folder that holds it, or give path.py:factory.",
            ) from error
        finally:
            sys.path.pop(0)
    path = Path(place)
    if not path.is_file():
        raise ConfigError(
            "--model", expected="a Python file", got=f"no file {place}",
            hint="Check the path.",
        )  # fmt: skip
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise ConfigError(
            "--model", expected="a Python file", got=place, hint="Check the path."
        )
    module = importlib.util.module_from_spec(found)
    sys.modules.setdefault(path.stem, module)
    found.loader.exec_module(module)
    return module


def load_weights(model: nn.Module, path: Path) -> list[str]:
    """Load a safetensors file, or a .pt/.pth file with ``weights_only``, strictly.

    Prefixes of data-parallel and compile wrappers are taken off.

    Returns:
        Notes on what was done to the names.

    Raises:
        ConfigError: Missing, damaged, not finite, or not the model's weights.
    """
    state = _read_weights(path)
    notes = []
    for prefix in _WRAPPERS:
        if state and all(k.startswith(prefix) for k in state):
            state = {k.removeprefix(prefix): v for k, v in state.items()}
            notes.append(f"prefix {prefix!r} taken off the names in {path.name}")
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ConfigError(
                f"{path}: {name}",
                expected="finite weights",
                got="NaN or infinity",
                hint="This checkpoint is broken; use an earlier one.",
            )
    _check_names(model, state, path)
    model.load_state_dict(state)
    return notes


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ConfigError(
            "--weights",
            expected="a file",
            got=f"no file {path}",
            hint="Check the path.",
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        import torch

        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _damaged(path, error) from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict):
        raise ConfigError(
            str(path),
            expected="a state_dict",
            got=type(loaded).__name__,
            hint="Save model.state_dict(), best as safetensors.",
        )
    return {str(k): v for k, v in loaded.items()}


def _damaged(path: Path, error: Exception) -> ConfigError:
    size = path.stat().st_size
    start = path.open("rb").read(64).lstrip().lower()
    what = f"a damaged file of {size} bytes ({type(error).__name__})"
    if size == 0:
        what = "an empty file"
    elif start.startswith((b"<!doctype", b"<html")):
        what = f"an HTML page of {size} bytes"
    elif "weights_only" in str(error) or "Unsupported" in str(error):
        what = f"a pickle with more than weights ({type(error).__name__})"
    return ConfigError(
        str(path),
        expected="weights as safetensors, or .pt with weights only",
        got=what,
        hint="Get the file again, or save model.state_dict(). Files are never loaded "
        "in a way that could run code.",
    )


def _check_names(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    missing = [k for k in own if k not in state]
    foreign = [k for k in state if k not in own]
    other = [k for k in own if k in state and own[k].shape != state[k].shape]
    if not missing and not foreign and not other:
        return
    parts = [
        f"{len(names)} {what} (first: {names[0]})"
        for names, what in (
            (missing, "missing"), (foreign, "unknown"), (other, "of another shape"),
        )
        if names
    ]  # fmt: skip
    loaded = len(own) - len(missing) - len(other)
    raise ConfigError(
        str(path),
        expected=f"all {len(own)} tensors of {type(model).__name__}",
        got=f"{loaded} that fit; {', '.join(parts)}",
        hint="Build the model as it was trained; half-loaded weights are not audited.",
    )


def load_images(
    places: list[Path], *, size: tuple[int, int] | None, mode: str | None
) -> list[Path | Image]:
    """Image files of folders and paths, in order of name, prepared where asked for.

    Args:
        places: Files or folders.
        size: (height, width) to resize (shorter side) and centre-crop to.
        mode: ``RGB`` or ``L`` to convert to, on purpose.

    Raises:
        NothingToAuditError: No image there.
    """
    files = [f for place in places for f in _files(place)]
    if not files:
        raise NothingToAuditError(
            "--images",
            expected="image files",
            got=f"none in {', '.join(map(str, places))}",
            hint=f"Known suffixes: {', '.join(sorted(IMAGE_SUFFIXES))}.",
        )
    if size is None and mode is None:
        return list(files)
    return [_prepared(f, size, mode) for f in files]


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise ConfigError(
            "--images", expected="a file or folder", got=str(place),
            hint="Check the path.",
        )  # fmt: skip
    found = (f for f in place.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
    return sorted(f for f in found if f.is_file())


def _prepared(
    path: Path, size: tuple[int, int] | None, mode: str | None
) -> Path | Image:
    """One prepared picture; a file that cannot be read is passed on to be listed."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            opened.load()
            image = opened.convert(mode) if mode else opened.copy()
    except OSError:
        return path
    if size is not None:
        height, width = size
        image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    image.filename = str(path)  # type: ignore[attr-defined]
    return image


def load_labels(path: Path, files: list[Any]) -> list[int]:
    """Class ids in the order of the images.

    Args:
        path: CSV with lines ``file name,class id``, JSON mapping names to ids, or a
            text file with one id a line in order of the image names.
        files: The images, with their names.

    Raises:
        ConfigError: A name without a label, or a label that is not a number.
    """
    names = [_name(f) for f in files]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            "--labels", expected="a readable file", got=str(error),
            hint="Check the path.",
        ) from error  # fmt: skip
    if path.suffix == ".json":
        data = json.loads(text)
        table = data if isinstance(data, dict) else dict(zip(names, data, strict=False))
    else:
        rows = [r for r in csv.reader(text.splitlines()) if r and r[0].strip()]
        if rows and not rows[0][-1].strip().lstrip("-").isdigit():
            rows = rows[1:]
        if rows and len(rows[0]) == 1:
            _same_count(len(rows), len(names))
            table = dict(zip(names, (r[0] for r in rows), strict=True))
        else:
            table = {r[0].strip(): r[1] for r in rows if len(r) > 1}
    return [_label(table, name) for name in names]


def _name(file: Any) -> str:
    return Path(str(getattr(file, "filename", file))).name


def _same_count(labels: int, images: int) -> None:
    if labels != images:
        raise ConfigError(
            "--labels",
            expected=f"{images} labels, one per image",
            got=str(labels),
            hint="Use lines of the form `file name,class id` to be sure of the order.",
        )


def _label(table: dict[str, Any], name: str) -> int:
    value = table.get(name, table.get(Path(name).stem))
    try:
        return int(str(value).strip())
    except ValueError:
        raise ConfigError(
            f"--labels: {name}",
            expected="a class id",
            got="none" if value is None else repr(value),
            hint="Add a line with this file name and its class id.",
        ) from None
