"""Labels for the images of the command line: a list of class ids, or masks."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from privaudit._mask_files import MASK_SUFFIXES, load_masks
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def load_labels(
    path: Path, files: list[Any], *, size: tuple[int, int] | None = None
) -> list[int] | Tensor:
    """Labels in the order of the images.

    Args:
        path: A folder of masks, an array, or a picture: see
            :func:`privaudit._mask_files.load_masks`. CSV with lines ``file
            name,class id``, JSON mapping names to ids, or one id a line (JSON: a
            list) in order of the image names. Where two folders hold files of one
            name, the end of the path tells them apart, as in ``cats/1.png``.
        files: The images, with their names.
        size: What the images are resized to, and masks with them.

    Raises:
        ConfigError: A name without a label, with two, or shared by two files; a
            label that is not a number.
    """
    places = [_plain(getattr(f, "filename", f)) for f in files]
    if path.is_dir() or path.suffix.lower() in MASK_SUFFIXES:
        return load_masks(path, places, size)
    try:
        text = path.read_text(encoding="utf-8-sig")
        given = json.loads(text) if path.suffix.lower() == ".json" else _rows(text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "--labels",
            expected="a readable file: CSV, JSON, or one class id a line, in UTF-8",
            got=f"{path}: {error}",
            hint="Check the path and the encoding.",
        ) from error
    if isinstance(given, dict):
        return _by_name(list(given.items()), places)
    if not isinstance(given, list):
        given = [given]
    names = {n for place in places for n in _names(place)}
    if given and _is_header(given[0], names):
        given = given[1:]
    if given and all(isinstance(row, list) and len(row) > 1 for row in given):
        return _by_name([(row[0], row[1]) for row in given], places)
    values = [row[0] if isinstance(row, list) and len(row) == 1 else row
              for row in given]  # fmt: skip
    if len(values) != len(places):
        raise ConfigError(
            "--labels",
            expected=f"{len(places)} labels, one per image",
            got=str(len(values)),
            hint="Use lines of the form `file name,class id` to be sure of the order.",
        )
    return [_class_id(v, place) for v, place in zip(values, places, strict=True)]


def _rows(text: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in r] for r in csv.reader(text.splitlines())]
    return [r for r in rows if any(r)]


def _is_header(row: Any, names: set[str]) -> bool:
    """A first row without a number and without a file's name."""
    if not isinstance(row, list) or not row or _plain(row[0]) in names:
        return False
    return not any(cell.lstrip("-").isdecimal() for cell in map(str, row))


def _by_name(pairs: list[tuple[Any, Any]], places: list[str]) -> list[int]:
    table: dict[str, Any] = {}
    for given, value in pairs:
        name = _plain(given)
        if str(table.setdefault(name, value)) != str(value):
            raise ConfigError(
                f"--labels: {name}",
                expected="one class id",
                got=f"{table[name]} and {value}",
                hint="Leave one of the lines.",
            )
    shared = Counter(n for place in places for n in set(_names(place)))
    found = []
    for place in places:
        name = next((n for n in _names(place) if n in table), "")
        if shared[name] > 1:
            raise ConfigError(
                f"--labels: {name}",
                expected="a name that fits one image",
                got=f"{shared[name]} images",
                hint="Write more of the path, as in `folder/name.png,class id`.",
            )
        found.append(_class_id(table.get(name), place))
    return found


def _names(place: str) -> list[str]:
    """What a label file may call an image: the end of its path, longest first."""
    parts = place.split("/")
    tails = ["/".join(parts[i:]) for i in range(len(parts))]
    return [*tails, PurePosixPath(place).stem]


def _plain(name: Any) -> str:
    """One way to write a name: some systems take accents apart, some do not."""
    text = str(name).strip().replace("\\", "/")
    return unicodedata.normalize("NFC", text)


def _class_id(value: Any, place: str) -> int:
    try:
        return int(str(value).strip())
    except ValueError:
        raise ConfigError(
            f"--labels: {place.rpartition('/')[2]}",
            expected="a class id",
            got="none" if value is None else repr(value),
            hint="Add a line with this file name and its class id.",
        ) from None
