"""From names in the image store to pictures on a page."""

from __future__ import annotations

import base64
import io
import struct
from typing import Protocol

from privaudit.report.blocks import Figure, Picture, Tone
from privaudit.result import Redaction

_PNG = b"\x89PNG\r\n\x1a\n"
_PIXELATED_UP_TO = 64
_LARGEST = 640
"""Wider or higher pictures are scaled down for the page; the files stay as they are."""
_LARGEST_ON_PAPER = 400
_THUMBNAIL = 128
_SMALLEST_ON_PAPER = 192
"""Smaller ones are enlarged there: some viewers would smooth their pixels away."""


class Images(Protocol):
    """Anything that finds PNG bytes by name."""

    def get(self, name: str, /) -> bytes | None:
        """The PNG called ``name``; None when it is not there."""
        ...


class Pictures:
    """Looks pictures up, once each, and says what is missing."""

    def __init__(
        self,
        images: Images,
        redaction: Redaction,
        *,
        paper: bool = False,
        bands: str = "",
    ) -> None:
        self._images = images
        self._bands = bands
        self._known: dict[tuple[str, bool], Picture | None] = {}
        self.redaction = redaction
        self.paper = paper
        """True for the PDF, which shows fewer pictures and smaller ones."""

    def get(self, name: str | None, *, small: bool = False) -> Picture | None:
        """The picture called ``name``; None when it is missing or no PNG."""
        if name is None:
            return None
        if (name, small) not in self._known:
            largest = _LARGEST_ON_PAPER if self.paper else _LARGEST
            self._known[name, small] = _picture(
                self._images.get(name),
                _THUMBNAIL if small else largest,
                _SMALLEST_ON_PAPER if self.paper else 0,
                "JPEG" if small else "PNG",
            )
        return self._known[name, small]

    def figure(
        self,
        name: str | None,
        caption: str,
        alt: str,
        *,
        tone: Tone = "plain",
        small: bool = False,
    ) -> Figure:
        """The picture with its caption, or the words in its place.

        Where it shows some bands of many, the words say so; beside a thumbnail there
        is only room in those for screen readers.
        """
        left_out = name is None and self.redaction != "none"
        if self._bands:
            alt = f"{alt} ({self._bands})"
            caption = caption if small else f"{caption} · {self._bands}"
        return Figure(
            picture=self.get(name, small=small),
            caption=caption,
            alt=alt,
            missing="left out by redaction" if left_out else "image not available",
            tone=tone,
        )

    def original(self, name: str | None, what: str, *, small: bool = False) -> Figure:
        """One of the user's own images, named as what it is on this page."""
        if self.redaction == "none":
            return self.figure(name, "Original", f"Original of {what}", small=small)
        alt = f"Original of {what}, blurred for redaction"
        return self.figure(name, "Original, blurred", alt, small=small)


def png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height as the PNG header gives them; None if it is no PNG."""
    if len(data) < 24 or not data.startswith(_PNG):
        return None
    width, height = struct.unpack(">II", data[16:24])
    return (width, height) if width and height else None


def _picture(
    data: bytes | None, largest: int, smallest: int, reduced: str
) -> Picture | None:
    """``reduced``: the format of what is scaled down, JPEG for small noisy pictures."""
    size = png_size(data) if data else None
    if data is None or size is None:
        return None
    shown = data
    if max(size) > largest:
        shown = _scaled(data, largest, reduced)
    elif max(size) <= _PIXELATED_UP_TO and max(size) < smallest:
        shown = _scaled(data, -(-smallest // max(size)) * max(size), "PNG")
    kind = "png" if shown.startswith(_PNG) else "jpeg"
    encoded = base64.b64encode(shown).decode("ascii")
    return Picture(
        uri=f"data:image/{kind};base64,{encoded}",
        width=size[0],
        height=size[1],
        pixelated=max(size) <= _PIXELATED_UP_TO,
    )


def _scaled(data: bytes, long: int, form: str) -> bytes:
    """The longer side becomes ``long``; enlarged pixels keep their edges."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            times = long / max(image.size)
            sides = [max(1, round(side * times)) for side in image.size]
            flat = image if form == "PNG" else image.convert("RGB")
            how = Image.Resampling.NEAREST if times > 1 else Image.Resampling.LANCZOS
            out = io.BytesIO()
            flat.resize((sides[0], sides[1]), how).save(out, format=form, quality=88)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return data
    return out.getvalue()
