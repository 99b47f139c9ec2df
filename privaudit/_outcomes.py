"""Reconstructions as JSON and arrays, and back: bit by bit, whatever they hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from privaudit.tape import Draw, Tape
from privaudit.types import FormOutcome, Reconstruction, Search

if TYPE_CHECKING:
    from numpy import ndarray

_CLASSES = {c.__name__: c for c in (Reconstruction, FormOutcome, Search, Tape, Draw)}
_PLAIN = (str, bool, int, type(None))


@dataclass
class Writer:
    """Takes values apart; what is a tensor ends up in ``arrays``."""

    arrays: dict[str, ndarray[Any, Any]] = field(default_factory=dict)

    def write(self, value: Any) -> Any:
        """``value`` as plain JSON.

        Raises:
            TypeError: It holds something else than the records of an attack.
        """
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            return self._tensor(value.detach())
        if isinstance(value, (list, tuple)):
            listed = [self.write(v) for v in value]
            return listed if isinstance(value, list) else {"tuple": listed}
        name = type(value).__name__
        if is_dataclass(value) and _CLASSES.get(name) is type(value):
            held = {f.name: self.write(getattr(value, f.name)) for f in fields(value)}
            return {"class": name, "fields": held}
        raise TypeError(f"a {name} cannot be kept")

    def _tensor(self, value: Tensor) -> dict[str, str]:
        """Arrays have no bfloat16: its bits are kept."""
        name = f"t{len(self.arrays)}"
        kind = str(value.dtype).removeprefix("torch.")
        flat = value.cpu().contiguous()
        if value.dtype is torch.bfloat16:
            flat = flat.view(torch.int16)
        self.arrays[name] = flat.numpy().copy()
        return {"tensor": name, "dtype": kind, "device": value.device.type}


@dataclass
class Reader:
    """Puts together what a :class:`Writer` took apart.

    Attributes:
        arrays: As the writer left them.
        device: Where tensors go that were not on the CPU.
    """

    arrays: Mapping[str, ndarray[Any, Any]]
    device: torch.device

    def read(self, value: Any) -> Any:
        """The value as it was.

        Raises:
            KeyError: It is not what a writer has written.
            TypeError: Likewise, such as a record with other fields.
        """
        if isinstance(value, list):
            return [self.read(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "float" in value:
            return float(value["float"])
        if "tuple" in value:
            return tuple(self.read(v) for v in value["tuple"])
        if "tensor" in value:
            return self._tensor(value)
        held = {n: self.read(v) for n, v in value["fields"].items()}
        return _CLASSES[value["class"]](**held)

    def _tensor(self, value: Mapping[str, str]) -> Tensor:
        found = torch.from_numpy(self.arrays[value["tensor"]].copy())
        if value["dtype"] == "bfloat16":
            found = found.view(torch.bfloat16)
        return found if value["device"] == "cpu" else found.to(self.device)
