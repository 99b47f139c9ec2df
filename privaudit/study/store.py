"""A folder of finished cells: whole or not there, each named by what it is."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, ValidationError

from privaudit.errors import ConfigError
from privaudit.report.files import cannot_write, make_folder, write_file
from privaudit.study.keys import (
    ARRAYS_FILE,
    FORMAT,
    RECORD_FILE,
    Cell,
    CellKey,
    Values,
    sha256,
    stable_json,
)

if TYPE_CHECKING:
    from numpy import ndarray

Arrays = Mapping[str, "ndarray[Any, Any]"]
Made = tuple[Values, Arrays]

STALE_S = 86_400.0
"""Half-written folders older than this are removed: nobody writes for a day."""
_UNFINISHED = ".unfinished-"
_DAMAGED = ".damaged-"


class Store:
    """Cells in ``FOLDER/cells/DIGEST``, each with ``cell.json`` and ``arrays.npz``.

    A cell is written under another name and renamed when it is complete, so that a
    crash at any moment leaves it whole or leaves it out. Several processes may share a
    store. Files get mode 0600: cells hold images.

    Args:
        folder: Created where it is missing.
        say: Told about damaged cells, one sentence each.

    Raises:
        ReportError: The folder cannot be made.
    """

    def __init__(
        self, folder: str | Path, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder = Path(folder)
        self._say = say
        self._cells = self.folder / "cells"
        make_folder(self.folder)
        make_folder(self._cells)
        self._tidy()

    def get(self, key: CellKey) -> Cell | None:
        """The finished cell of ``key``, or None.

        A damaged one is set aside, said, and counts as not there.
        """
        place = self._cells / key.digest
        if not place.exists():
            return None
        try:
            cell = _read(place)
            if cell.key != key:
                raise _DamagedError("it holds another cell than its name says")
        except _DamagedError as error:
            self._set_aside(place, str(error))
            return None
        return cell

    def put(self, key: CellKey, values: Values, arrays: Arrays | None = None) -> Cell:
        """Write a finished cell. Where there is one already, that one stays.

        Args:
            key: What it is.
            values: Plain JSON; numbers that are not finite do not exist there.
            arrays: NumPy arrays by name.

        Raises:
            ConfigError: The values are no JSON.
            ReportError: The place cannot be written, or is full.
        """
        known = self.get(key)
        if known is not None:
            return known
        files = {ARRAYS_FILE: _npz(arrays)} if arrays else {}
        record = _record(key, values, files)
        self._commit({**files, RECORD_FILE: record}, self._cells / key.digest)
        return self.get(key) or _vanished(self._cells / key.digest)

    def once(self, key: CellKey, make: Callable[[], Made]) -> Cell:
        """The cell of ``key``, which ``make`` computes only where it is missing."""
        return self.get(key) or self.put(key, *make())

    def cells(self, kind: str | None = None) -> list[Cell]:
        """Every whole cell, of one kind or of all, in the order of their digests."""
        found = []
        for place in sorted(self._cells.iterdir()):
            if place.name.startswith("."):
                continue
            try:
                cell = _read(place)
            except _DamagedError as error:
                self._set_aside(place, str(error))
                continue
            if kind in (None, cell.key.kind):
                found.append(cell)
        return found

    def merge(self, other: Store) -> int:
        """Take over the cells of ``other`` that are missing here; says how many."""
        taken = 0
        for cell in other.cells():
            if self.get(cell.key) is None:
                names = [RECORD_FILE, ARRAYS_FILE]
                files = {
                    n: (cell.folder / n).read_bytes()
                    for n in names
                    if (cell.folder / n).exists()
                }
                self._commit(files, self._cells / cell.key.digest)
                taken += 1
        return taken

    def _commit(self, files: Mapping[str, bytes], place: Path) -> None:
        """All files under a name that nobody reads, then the name that counts."""
        temporary = self._cells / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            make_folder(temporary)
            for name, data in files.items():
                write_file(temporary / name, data)
            os.replace(temporary, place)
        except OSError as error:
            if not place.is_dir():  # else another process finished it first
                needed = sum(map(len, files.values()))
                raise cannot_write(place, error, needed=needed) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _set_aside(self, place: Path, why: str) -> None:
        aside = place.with_name(f"{_DAMAGED}{secrets.token_hex(4)}-{place.name}")
        try:
            os.replace(place, aside)
        except OSError as error:
            raise cannot_write(place, error, needed=0) from error
        self._say(
            f"Damaged cell {place.name[:12]} in {self.folder}: {why}. It counts as not "
            f"finished and lies aside as {aside.name}."
        )

    def _tidy(self) -> None:
        """Remove what writers that were killed left behind."""
        for place in self._cells.glob(f"{_UNFINISHED}*"):
            with contextlib.suppress(OSError):
                if time.time() - place.stat().st_mtime > STALE_S:
                    shutil.rmtree(place, ignore_errors=True)


class _DamagedError(Exception):
    """A cell that is not what was written."""


def _record(key: CellKey, values: Values, files: Mapping[str, bytes]) -> bytes:
    body: dict[str, JsonValue] = {
        "format": FORMAT,
        "key": key.model_dump(mode="json"),
        "values": dict(values),
        "files": {name: sha256(data) for name, data in files.items()},
    }
    try:
        digest = sha256(stable_json(body))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Store.put({key.kind!r}).values",
            expected="plain JSON with finite numbers",
            got=str(error),
            hint="Write None or a word where there is no number.",
        ) from error
    return json.dumps({**body, "digest": digest}, indent=1).encode()


def _read(place: Path) -> Cell:
    """The cell at ``place``, every byte checked.

    Raises:
        _DamagedError: It is not what was written.
    """
    body = _parsed(place / RECORD_FILE)
    if body.get("format") != FORMAT:
        raise _DamagedError(f"its format is {body.get('format')!r}, not {FORMAT}")
    digest = body.pop("digest", None)
    if digest != sha256(stable_json(body)):
        raise _DamagedError(f"{RECORD_FILE} was changed")
    try:
        key = CellKey.model_validate(body["key"])
        values, files = dict(body["values"]), dict(body["files"])
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise _DamagedError(f"{RECORD_FILE} lacks parts") from error
    for name, wanted in files.items():
        if _digest_of(place / name) != wanted:
            raise _DamagedError(f"{name} is cut or was changed")
    if key.digest != place.name:
        raise _DamagedError("it holds another cell than its name says")
    return Cell(key, values, place)


def _parsed(file: Path) -> dict[str, Any]:
    try:
        body = json.loads(file.read_bytes())
    except OSError as error:
        raise _DamagedError(f"{file.name} is missing") from error
    except ValueError as error:
        raise _DamagedError(f"{file.name} is cut or was changed") from error
    if not isinstance(body, dict):
        raise _DamagedError(f"{file.name} is no record")
    return body


def _digest_of(file: Path) -> str | None:
    try:
        return sha256(file.read_bytes())
    except OSError:
        return None


def _npz(arrays: Arrays) -> bytes:
    import numpy as np

    out = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez(out, **named)
    return out.getvalue()


def _vanished(place: Path) -> Cell:
    raise cannot_write(place, FileNotFoundError("gone after it was written"), needed=0)
