"""From the command line's words to a model, its weights and images."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privaudit._image_files import ARRAY_SUFFIXES, Pixels, fitted, unstacked
from privaudit._picture_files import open_picture, values_of
from privaudit.errors import ConfigError, NothingToAuditError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

IMAGE_SUFFIXES = {
    ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
    *ARRAY_SUFFIXES,
}  # fmt: skip
_WRAPPERS = ("module.", "_orig_mod.")


def load_model(spec: str, option: str = "--model") -> nn.Module:
    """Call the factory named by ``package.module:factory`` or ``path.py:factory``.

    Args:
        spec: The name.
        option: Where it was given, for messages.

    Raises:
        ConfigError: The place, the factory or what it returns cannot be used.
    """
    from torch import nn

    model = factory = _named(option, spec, "a factory")
    if not isinstance(factory, nn.Module):
        model = _guarded(option, f"{spec} builds a model without arguments", factory)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            option,
            expected="a factory that returns an nn.Module",
            got=type(model).__name__,
            hint="Return the module itself.",
        )
    return model


def load_training_step(spec: str) -> Callable[..., Tensor]:
    """The function (model, inputs, labels) → loss named by ``module:function``.

    Raises:
        ConfigError: The place or the function cannot be used.
    """
    step = _named("--training-step", spec, "a function")
    if not callable(step):
        raise ConfigError(
            "--training-step",
            expected="a function of (model, inputs, labels)",
            got=type(step).__name__,
            hint="Name the function that returns the training loss.",
        )
    return step  # type: ignore[no-any-return]


def load_function(spec: str, option: str) -> Callable[..., Any]:
    """The function named by ``package.module:function`` or ``path.py:function``.

    Raises:
        ConfigError: The place or the function cannot be used.
    """
    found = _named(option, spec, "a function")
    if callable(found):
        return found  # type: ignore[no-any-return]
    raise ConfigError(
        option, expected="a function", got=type(found).__name__,
        hint="Name a function of that file.",
    )  # fmt: skip


def _named(option: str, spec: str, what: str) -> Any:
    """What ``package.module:name`` or ``path.py:name`` stands for."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        kind = what.rpartition(" ")[2]
        raise ConfigError(
            option,
            expected=f"package.module:{kind} or path.py:{kind}",
            got=repr(spec),
            hint="Name the function that returns the training loss."
            if option == "--training-step"
            else "Name the function that builds the model.",
        )
    module = _guarded(
        option, f"{place} can be imported", lambda: _import(option, place)
    )
    try:
        return getattr(module, name)
    except AttributeError:
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(
            option,
            expected=f"{what} in {place}",
            got=f"no {name!r} there",
            hint=f"It has: {', '.join(sorted(public)[:20])}.",
        ) from None


def _guarded(where: str, expected: str, call: Callable[[], Any]) -> Any:
    """Run the user's code; whatever it raises is a fault of the configuration."""
    try:
        return call()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            where,
            expected=expected,
            got=_first_cause(error),
            hint="Run that file by itself to see the whole traceback.",
        ) from error


def _first_cause(error: BaseException) -> str:
    """The error, and where in the user's code it was raised."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    last = [f for f in frames if not f.filename.startswith("<frozen")][-1]
    kind = type(error).__name__
    return f"{kind}: {error} ({last.filename}, line {last.lineno})"


def _import(option: str, place: str) -> Any:
    if not place.endswith(".py"):
        try:
            with _searched(Path.cwd()):
                return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if not f"{place}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(
                option,
                expected=f"a module {place}",
                got=str(error),
                hint="Run from the folder that holds it, or give path.py:factory.",
            ) from error
    path = Path(place).absolute()
    known = sys.modules.get(path.stem)
    if getattr(known, "__file__", None) == str(path):
        return known  # model and training step of one file share its classes
    found = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or found is None or found.loader is None:
        raise ConfigError(
            option, expected="a Python file", got=f"no file {place}",
            hint="Check the path.",
        )  # fmt: skip
    module = importlib.util.module_from_spec(found)
    sys.modules.setdefault(path.stem, module)
    with _searched(path.parent):
        found.loader.exec_module(module)
    return module


@contextmanager
def _searched(folder: Path) -> Iterator[None]:
    """Modules beside the user's are found, as when Python runs that file."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def load_weights(model: nn.Module, path: Path) -> list[str]:
    """Load a safetensors file, or a .pt/.pth file with ``weights_only``, strictly.

    Prefixes of data-parallel and compile wrappers are taken off.

    Returns:
        Notes on what was done to the names.

    Raises:
        ConfigError: Missing, damaged, not finite, or not the model's weights.
    """
    state, notes = _unwrapped(_read_weights(path), set(model.state_dict()), path)
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


def _unwrapped(
    state: dict[str, Tensor], own: set[str], path: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """Names without the prefixes of wrappers, unless the model has these itself."""
    notes = []
    while state and not own & state.keys():
        prefix = next((p for p in _WRAPPERS if all(k.startswith(p) for k in state)), "")
        if not prefix:
            break
        state = {k.removeprefix(prefix): v for k, v in state.items()}
        notes.append(f"prefix {prefix!r} taken off the names in {path.name}")
    return state, notes


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
        loaded = {type(loaded).__name__: None}
    others = [str(k) for k, v in loaded.items() if not isinstance(v, torch.Tensor)]
    if others:
        raise ConfigError(
            str(path),
            expected="a state_dict: names and tensors",
            got=f"{', '.join(others[:5])}, which is no tensor",
            hint="Save model.state_dict(), best as safetensors.",
        )
    return {str(k): v for k, v in loaded.items()}


def _damaged(path: Path, error: Exception) -> ConfigError:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(64).lstrip().lower()
    what = f"a damaged file of {size} bytes ({type(error).__name__})"
    if size == 0:
        what = "an empty file"
    elif start.startswith((b"<!doctype", b"<html")):
        what = f"an HTML page of {size} bytes"
    elif "GLOBAL" in str(error) or start.startswith(b"\x80"):
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
    places: list[Path],
    *,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    channels_last: bool = False,
) -> list[Path | Image | Pixels]:
    """Image files of folders and paths, in order of name, prepared where asked for.

    Args:
        places: Files or folders.
        size: (height, width) to resize (shorter side) and centre-crop to.
        mode: ``RGB`` or ``L`` to convert pictures to, on purpose.
        channels_last: Array files hold (height, width, channels).

    Raises:
        NothingToAuditError: No image there.
        ConfigError: A file of numbers that are no images, or cannot be converted.
    """
    files = [f for place in places for f in _files(place)]
    if not files:
        raise NothingToAuditError(
            "--images",
            expected="image files",
            got=f"none in {', '.join(map(str, places))}",
            hint=f"Known suffixes: {', '.join(sorted(IMAGE_SUFFIXES))}.",
        )
    items = unstacked(files, channels_last=channels_last)
    return [_prepared(item, size, mode) for item in items] if size or mode else items


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
    item: Path | Pixels, size: tuple[int, int] | None, mode: str | None
) -> Path | Image | Pixels:
    """One prepared image; a file that cannot be read is passed on to be listed."""
    if isinstance(item, Path):
        image = _opened(item)
        if image is None:
            return item
        if image.mode[0] not in "IF":
            return _converted(image, item, size, mode)
        item = Pixels(values_of(image, 0, None), str(item))
    if mode is not None:
        raise ConfigError(
            f"--image-mode {mode}: {Path(item.filename).name}",
            expected="8 bits a channel",
            got=f"{len(item.values)} channel(s) of numbers",
            hint="Scale it to 8 bits first; a plain conversion would cut values off.",
        )
    return item if size is None else replace(item, values=fitted(item.values, size))


def _opened(path: Path) -> Image | None:
    """The picture; None for a file that cannot be read."""
    from PIL import Image

    try:
        picture: Image.Image = open_picture(path)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return picture


def _converted(
    image: Image, path: Path, size: tuple[int, int] | None, mode: str | None
) -> Image:
    from PIL import Image, ImageOps

    if mode is not None:
        image = image.convert(mode)
    if size is not None:
        height, width = size
        image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    image.filename = str(path)  # type: ignore[attr-defined]
    return image
