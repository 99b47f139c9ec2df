"""Cut the sample photographs out of scikit-image's bundled data.

Run once by hand; the pictures are committed. Sources and licences:
``privaudit/_samples/LICENSES.md``.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from skimage import data

SIZE = 256
MAX_BYTES = 40_000
TARGET = Path(__file__).parent.parent / "privaudit" / "_samples"

# name, file in skimage.data, side of the centred square (None: as large as it gets)
SOURCES: list[tuple[str, str, int | None]] = [
    ("astronaut", "astronaut.png", None),
    ("cat", "chelsea.png", None),
    ("coffee", "coffee.png", None),
    ("retina", "retina.jpg", None),
    ("camera", "camera.png", None),
    ("rocket", "rocket.jpg", None),
    ("galaxies", "hubble_deep_field.jpg", 420),
    ("bricks", "brick.png", None),
]


def main() -> None:
    """Write every picture at the best quality that keeps it small."""
    for name, file, side in SOURCES:
        picture = Image.open(Path(data.__file__).parent / file).convert("RGB")
        square = centre(picture, side or min(picture.size))
        small = square.resize((SIZE, SIZE), Image.Resampling.LANCZOS)
        print(name, save(small, TARGET / f"{name}.jpg"))


def centre(picture: Image.Image, side: int) -> Image.Image:
    """The centred square of ``side`` pixels."""
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))


def save(picture: Image.Image, path: Path) -> str:
    """Write a JPEG of at most ``MAX_BYTES`` and say how it went."""
    for quality in range(95, 70, -1):
        picture.save(path, quality=quality, optimize=True)
        if path.stat().st_size <= MAX_BYTES:
            return f"quality {quality}, {path.stat().st_size} bytes"
    raise SystemExit(f"{path}: over {MAX_BYTES} bytes even at quality 71")


if __name__ == "__main__":
    main()
