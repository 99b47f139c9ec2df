"""Files that are either complete or not there at all, and readable by nobody else."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from privaudit.errors import ReportError


def write_file(path: Path, data: bytes) -> None:
    """Write ``data`` with mode 0600 by way of a temporary name beside ``path``.

    On failure an older file stays as it was and nothing else is left behind.

    Raises:
        ReportError: The place cannot be written, or is full.
    """
    temporary = path.parent / f".privaudit-{secrets.token_hex(8)}.tmp"
    try:
        _write_through(temporary, data)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error, needed=len(data)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def make_folder(path: Path) -> None:
    """Create the folder, closed to others, unless it is there.

    Raises:
        ReportError: It cannot be created, or something else is in its place.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error, needed=0) from error


def remove_file(path: Path) -> None:
    """Remove a file that must not stay behind; fine if it is gone.

    Raises:
        ReportError: It cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error, needed=0) from error


def cannot_write(path: Path, error: OSError, *, needed: int) -> ReportError:
    """The error that names the place, what it takes, and what is free there."""
    return ReportError(
        str(path),
        expected=f"a place to write, {needed:,} bytes needed",
        got=f"{error.strerror or error} ({_free(path)} bytes free)",
        hint="Free some space or choose another place; an older file there is "
        "unchanged.",
    )


def _write_through(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _free(path: Path) -> str:
    for folder in path.parents:
        with contextlib.suppress(OSError):
            return f"{shutil.disk_usage(folder).free:,}"
    return "unknown"
