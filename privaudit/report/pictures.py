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


class Images(Protocol):
    """Anything that finds PNG bytes by name."""

    def get(self, name: str, /) -> bytes | None:
        """The PNG called ``name``; None when it is not there."""
        ...


class Pictures:
    """Looks pictures up, once each, and says what is missing."""

    def __init__(self, images: Images, redaction: Redaction) -> None:
        self._images = images
        self._known: dict[str, Picture | None] = {}
        self.redaction = redaction

    def get(self, name: str | None) -> Picture | None:
        """The picture called ``name``; None when it is missing or no PNG."""
        if name is None:
            return None
        if name not in self._known:
            self._known[name] = _picture(self._images.get(name))
        return self._known[name]

    def figure(
        self, name: str | None, caption: str, alt: str, *, tone: Tone = "plain"
    ) -> Figure:
        """The picture with its caption, or the words in its place."""
        left_out = name is None and self.redaction != "none"
        return Figure(
            picture=self.get(name),
            caption=caption,
            alt=alt,
            missing="left out by redaction" if left_out else "image not available",
            tone=tone,
        )

    def original(self, name: str | None, what: str) -> Figure:
        """One of the user's own images, named as what it is on this page."""
        if self.redaction == "none":
            return self.figure(name, "Original", f"Original of {what}")
        return self.figure(
            name, "Original, blurred", f"Original of {what}, blurred for redaction"
        )


def png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height as the PNG header gives them; None if it is no PNG."""
    if len(data) < 24 or not data.startswith(_PNG):
        return None
    width, height = struct.unpack(">II", data[16:24])
    return (width, height) if width and height else None


def _picture(data: bytes | None) -> Picture | None:
    size = png_size(data) if data else None
    if data is None or size is None:
        return None
    shown = _scaled_down(data) if max(size) > _LARGEST else data
    encoded = base64.b64encode(shown).decode("ascii")
    return Picture(
        uri=f"data:image/png;base64,{encoded}",
        width=size[0],
        height=size[1],
        pixelated=max(size) <= _PIXELATED_UP_TO,
    )


def _scaled_down(data: bytes) -> bytes:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            image.thumbnail((_LARGEST, _LARGEST))
            out = io.BytesIO()
            image.save(out, format="PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return data
    return out.getvalue()
