"""What a module puts out: the one tensor of it that is sent, and the rest around it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from privaudit.errors import ConfigError

Key = int | str
_HINT = "Pass Split(name, select=...) with the index or key of a tensor of floats."


def parts(out: Any) -> dict[Key, Any]:
    """Elements of a tuple, list, mapping or dataclass by index, key or field."""
    if isinstance(out, Mapping):
        return dict(out)
    if isinstance(out, (tuple, list)):
        return dict(enumerate(out))
    if dataclasses.is_dataclass(out) and not isinstance(out, type):
        return {f.name: getattr(out, f.name) for f in dataclasses.fields(out)}
    return {}


def main_key(out: Any, where: str) -> Key | None:
    """Which element is sent when nobody says: the first tensor of floats with a batch.

    None where the output is one tensor.

    Raises:
        ConfigError: There is no such element.
    """
    if isinstance(out, Tensor):
        return None
    floats = {k: v for k, v in parts(out).items() if is_float(v)}
    batched = [k for k, v in floats.items() if v.dim() > 1]
    if batched or floats:
        return [*batched, *floats][0]
    raise ConfigError(
        f"split {where}",
        expected="an output with a tensor of floats",
        got=described(out),
        hint="Cut at a module that puts out a tensor; inner parts are listed by "
        "split_candidates().",
    )


def chosen(out: Any, key: Key | None, where: str) -> Tensor:
    """The tensor that is sent.

    Raises:
        ConfigError: No such element, or it is no tensor of floats.
    """
    if key is None:
        key = main_key(out, where)
    if key is None or isinstance(out, Tensor):
        value = out if key is None else None
    else:
        value = parts(out).get(key)
    if isinstance(value, Tensor) and is_float(value):
        return value
    wanted = "a tensor of floats" if key is None else f"a tensor of floats at {key!r}"
    raise ConfigError(
        f"split {where}",
        expected=wanted,
        got=described(out),
        hint=_HINT
        if parts(out)
        else "Leave out select=: the output is no collection."
        if key is not None
        else "Integers have no gradient: cut behind the layer that embeds them.",
    )


def replaced(out: Any, key: Key | None, value: Tensor) -> Any:
    """``out`` with one element exchanged; types and all other values stay."""
    if key is None or isinstance(out, Tensor):
        return value
    if isinstance(out, (tuple, list)):
        items = [value if i == key else v for i, v in enumerate(out)]
        return type(out)(*items) if hasattr(out, "_make") else type(out)(items)
    twin: Any = copy.copy(out)
    if isinstance(out, Mapping):
        twin[key] = value
    else:
        object.__setattr__(twin, str(key), value)
    return twin


def tensors(out: Any, name: str = "output") -> dict[str, Tensor]:
    """Every tensor in ``out``, to any depth, by where it is."""
    if isinstance(out, Tensor):
        return {name: out}
    found: dict[str, Tensor] = {}
    for key, value in parts(out).items():
        found.update(tensors(value, f"{name}[{key!r}]"))
    return found


def in_words(out: Any, key: Key | None, where: str) -> str:
    """Which element is sent, for the report; empty where there is no choice."""
    if key is None:
        return ""
    shape = tuple(chosen(out, key, where).shape)
    name = "element" if isinstance(key, int) else "entry"
    return f"{name} {key!r} of {len(parts(out))}, shape {shape}"


def described(out: Any) -> str:
    """Type and content, as error messages tell it."""
    if isinstance(out, Tensor):
        return f"{str(out.dtype).removeprefix('torch.')} of shape {tuple(out.shape)}"
    listed = ", ".join(f"{k!r}: {_brief(v)}" for k, v in parts(out).items())
    return f"{type(out).__name__} with {listed}" if listed else type(out).__name__


def is_float(value: Any) -> bool:
    """True for tensors that a gradient can pass."""
    return isinstance(value, Tensor) and value.is_floating_point()


def _brief(value: Any) -> str:
    return described(value) if isinstance(value, Tensor) else type(value).__name__
