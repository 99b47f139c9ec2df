"""What a cell is called by: everything that decides its numbers. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

if TYPE_CHECKING:
    from numpy import ndarray

FORMAT = 1
"""Of a cell's folder; part of every digest, so that formats never meet."""
RECORD_FILE = "cell.json"
ARRAYS_FILE = "arrays.npz"

Values = Mapping[str, JsonValue]


class CellKey(BaseModel):
    """One computation. Two keys are equal exactly where it is the same one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = Field(min_length=1)
    """What is computed, such as ``audit-client``."""
    version: str
    """Of privaudit, which computes it."""
    model: str
    """Digest of the model."""
    data: str
    """Digest of the images and labels."""
    settings: dict[str, JsonValue]
    """All else that decides the numbers."""

    @property
    def digest(self) -> str:
        """SHA-256 of the key in one fixed spelling; the name of the cell's folder."""
        return sha256(stable_json({"format": FORMAT, **self.model_dump(mode="json")}))

    def differences(self, other: CellKey) -> list[str]:
        """What sets the two apart, one line each: ``name: this, not that``."""
        mine, theirs = _flat(self.model_dump()), _flat(other.model_dump())
        return [
            f"{name}: {_short(theirs.get(name))} there, {_short(mine.get(name))} here"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        ]


@dataclass(frozen=True)
class Cell:
    """A finished computation in its folder.

    Attributes:
        key: What it is.
        values: Its numbers and words, plain JSON.
        folder: Where it lies.
    """

    key: CellKey
    values: Values
    folder: Path

    def arrays(self) -> dict[str, ndarray[Any, Any]]:
        """Its arrays by name; empty where it has none."""
        import numpy as np

        file = self.folder / ARRAYS_FILE
        if not file.exists():
            return {}
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}


def stable_json(value: Any) -> bytes:
    """JSON in one spelling: sorted names, no spaces, ASCII, no NaN.

    Raises:
        ValueError: A number that JSON does not have.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode()


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    return dict(_leaves(value, name))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{name}.{key}" if name else key)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
