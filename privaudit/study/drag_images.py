"""Images of a folder as Lei 2025 takes them: square, of the client's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from torch import Tensor

from privaudit._loading import IMAGE_SUFFIXES, load_images
from privaudit._pixels import Normalisation
from privaudit._sample import read_sample
from privaudit.errors import ConfigError, NothingToAuditError
from privaudit.study.drag_handed import FACES


@dataclass(frozen=True, eq=False)
class Pictures:
    """Some images of a folder.

    Attributes:
        names: Paths inside the folder.
        images: (count, 3, side, side) in [0, 1].
    """

    names: Sequence[str]
    images: Tensor

    @property
    def faces(self) -> list[bool]:
        """Which lie in a folder called ``ffhq``."""
        return [FACES in Path(name).parts for name in self.names]


def pictures(folder: Path, count: int, side: int) -> Pictures:
    """The first images, from subfolders in turn, shorter side resized, centre cut out.

    Raises:
        ConfigError: There are none, or one cannot be read.
    """
    files = _in_turn(folder)[:count]
    if not files:
        raise ConfigError(
            "--images",
            expected="a folder with the paper's images",
            got=f"no image in {folder}",
            hint="Put images of MSCOCO, ImageNet-1K, and FFHQ (in folder ffhq) there.",
        )
    items = load_images(files, size=(side, side), mode="RGB")
    try:
        sample, _ = read_sample(items, Normalisation.of(None, None), channels=3)
    except NothingToAuditError as error:
        raise _unreadable("none of them", error.got) from error
    if sample.skipped:
        raise _unreadable(*sample.skipped[0])
    return Pictures([str(f.relative_to(folder)) for f in files], sample.images)


def _in_turn(folder: Path) -> list[Path]:
    """One of each subfolder, then the next of each."""
    groups: dict[Path, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix.lower() in IMAGE_SUFFIXES:
            groups.setdefault(file.parent, []).append(file)
    return [f for row in zip_longest(*groups.values()) for f in row if f is not None]


def _unreadable(name: str, reason: str) -> ConfigError:
    return ConfigError(
        "--images", expected="images that can be read", got=f"{name}: {reason}",
        hint="Remove the file.",
    )  # fmt: skip
