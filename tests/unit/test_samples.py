"""The shipped photographs."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from privaudit import _samples
from privaudit.errors import ConfigError

FOLDER = Path(_samples.__file__).parent


def pixels(picture: Image.Image) -> NDArray[np.float64]:
    return np.asarray(picture, dtype=np.float64) / 255


def test_every_file_is_named_small_square_and_rgb() -> None:
    assert sorted(f.stem for f in FOLDER.glob("*.jpg")) == sorted(_samples.names())
    for name in _samples.names():
        file = FOLDER / f"{name}.jpg"
        assert file.stat().st_size <= 40_000
        with Image.open(file) as picture:
            assert (picture.size, picture.mode) == ((256, 256), "RGB")


def test_every_file_has_its_line_with_a_free_licence() -> None:
    text = (FOLDER / "LICENSES.md").read_text(encoding="utf-8")
    rows = {m[1]: m[0] for m in re.finditer(r"^\| `(\w+)\.jpg` .*\|$", text, re.M)}
    assert sorted(rows) == sorted(_samples.names())
    for row in rows.values():
        assert re.search("CC0|public domain", row)


@pytest.mark.parametrize("size", [(224, 224), (32, 32), (96, 160), (300, 20)])
def test_size_is_height_then_width(size: tuple[int, int]) -> None:
    for picture in [*_samples.load(8, size), *_samples.crops(9, size)]:
        assert pixels(picture).shape == (*size, 3)


def test_loading_is_deterministic() -> None:
    first, again = _samples.load(8, (64, 64)), _samples.load(8, (64, 64))
    assert [p.tobytes() for p in first] == [p.tobytes() for p in again]
    first, again = _samples.crops(64, (32, 32)), _samples.crops(64, (32, 32))
    assert [p.tobytes() for p in first] == [p.tobytes() for p in again]


def test_fewer_are_the_first_of_more() -> None:
    many = [p.tobytes() for p in _samples.crops(20, (32, 32))]
    assert [p.tobytes() for p in _samples.crops(5, (32, 32))] == many[:5]
    assert _samples.load(0, (32, 32)) == []


def test_the_centre_is_kept() -> None:
    whole = pixels(_samples.load(1, (256, 256))[0])
    tall = pixels(_samples.load(1, (256, 128))[0])
    np.testing.assert_array_equal(tall, whole[:, 64:192])


def test_resizing_is_antialiased() -> None:
    """A pixel of the small picture is about the mean of those it stands for."""
    whole = pixels(_samples.load(8, (256, 256))[7])
    small = pixels(_samples.load(8, (32, 32))[7])
    means = whole.reshape(32, 8, 32, 8, 3).mean(axis=(1, 3))
    nearest = whole[4::8, 4::8]
    assert np.abs(small - means).mean() < np.abs(nearest - means).mean() / 2


def test_no_two_crops_are_alike() -> None:
    """Far from each other pixel by pixel, and no copies."""
    pictures = [pixels(p) for p in _samples.crops(_samples.MAX_CROPS, (32, 32))]
    distances = [np.abs(a - b).mean() for a, b in combinations(pictures, 2)]
    assert min(distances) > 0.02
    assert float(np.median(distances)) > 0.2


@pytest.mark.parametrize(("function", "available"), [("load", 8), ("crops", 64)])
@pytest.mark.parametrize("count", [-1, 65])
def test_more_than_there_are_is_refused(
    function: str, available: int, count: int
) -> None:
    with pytest.raises(ConfigError, match=f"expected 0 to {available}, got {count}"):
        getattr(_samples, function)(count, (32, 32))


def test_an_empty_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"both at least 1, got \(0, 32\)"):
        _samples.load(1, (0, 32))


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from privaudit import _samples; _samples.load(1, (8, 8)); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
