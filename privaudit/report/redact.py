"""Blurring of pictures. What has been blurred once stays blurred."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from privaudit.errors import ReportError
from privaudit.report.pictures import Images
from privaudit.result import (
    AuditRecord,
    Iterate,
    LadderStep,
    Redaction,
    SampleRecord,
)

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

Shown = TypeVar("Shown", SampleRecord, LadderStep, Iterate)

_ORDER: tuple[Redaction, ...] = ("none", "originals", "all")
_BLOCKS = 8
_SMALLEST_BLOCK = 8
"""Pixels; small pictures get fewer blocks, so that digits cannot be read either."""


def stronger(stored: Redaction, asked: str) -> Redaction:
    """The stronger of two redactions: a stored one is never taken back.

    Raises:
        ReportError: ``asked`` is no redaction.
    """
    for step in _ORDER:
        if step == asked:
            return max(stored, step, key=_ORDER.index)
    raise ReportError(
        "save(redact=...)",
        expected=f"one of {', '.join(_ORDER)}",
        got=repr(asked),
        hint='"originals" blurs your images, "all" the reconstructions as well.',
    )


def covered(record: AuditRecord, redaction: Redaction) -> frozenset[str]:
    """Names of the pictures that ``redaction`` hides.

    Differences and the unrelated picture count as originals: the first give the
    original away together with the reconstruction, the second may be one.
    """
    names: list[str | None] = []
    if redaction != "none":
        names += [s.image for s in record.samples]
        names += [step.image for step in record.ladder]
        names += [name for a in record.attacks for name in a.differences]
        names.append(record.unrelated_image)
    if redaction == "all":
        names += [name for a in record.attacks for name in a.images]
        names += [step.image for a in record.attacks for step in a.iterates]
        names += [a.prior.unguided for a in record.attacks if a.prior is not None]
    return frozenset(name for name in names if name is not None)


def picture_names(record: AuditRecord) -> list[str]:
    """All pictures of the record that may lie in a folder, in a stable order."""
    return sorted(name for name in covered(record, "all") if _inside(name))


def redacted_images(
    record: AuditRecord, images: Images, redaction: Redaction
) -> dict[str, bytes]:
    """All pictures of the record that exist, with the hidden ones blurred.

    A picture that cannot be read cannot be blurred either, and is left out. What is
    blurred already is blurred again, which costs little and needs no trust.
    """
    shown = RedactedImages(record, images, redaction)
    kept: dict[str, bytes] = {}
    for name in picture_names(record):
        data = shown.get(name)
        if data is not None:
            kept[name] = data
    return kept


class RedactedImages:
    """The same one by one, for a page that shows a few of very many."""

    def __init__(
        self, record: AuditRecord, images: Images, redaction: Redaction
    ) -> None:
        self._images = images
        self._hidden = covered(record, redaction)

    def get(self, name: str, /) -> bytes | None:
        """The PNG called ``name``, blurred where it is hidden; None if unreadable."""
        data = self._images.get(name) if _inside(name) else None
        return blur(data) if data is not None and name in self._hidden else data


def without_pictures(record: AuditRecord, redaction: Redaction) -> AuditRecord:
    """The record alone: redacted pictures lose their names, so none can be found."""
    hidden = covered(record, redaction)

    def names(given: Iterable[str | None]) -> list[str | None]:
        return [None if name in hidden else name for name in given]

    def one(name: str | None) -> str | None:
        return names([name])[0]

    return record.model_copy(
        update={
            "redaction": redaction,
            "samples": [_with_image(s, one(s.image)) for s in record.samples],
            "ladder": [_with_image(s, one(s.image)) for s in record.ladder],
            "unrelated_image": one(record.unrelated_image),
            "attacks": [
                a.model_copy(
                    update={
                        "images": names(a.images),
                        "differences": names(a.differences),
                        "iterates": [_with_image(i, one(i.image)) for i in a.iterates],
                        "prior": a.prior
                        and a.prior.model_copy(
                            update={"unguided": one(a.prior.unguided)}
                        ),
                    }
                )
                for a in record.attacks
            ],
        }
    )


def without_tokens(record: AuditRecord, redaction: Redaction) -> AuditRecord:
    """Token ids cannot be blurred, so what is hidden is taken out."""
    if record.kind != "tokens" or redaction == "none":
        return record
    hidden: dict[str, object] = {
        "samples": [s.model_copy(update={"tokens": None}) for s in record.samples]
    }
    if redaction == "all":
        nothing: dict[str, object] = {"tokens": [], "leaked_ids": []}
        hidden["attacks"] = [a.model_copy(update=nothing) for a in record.attacks]
    return record.model_copy(update=hidden)


def blur(data: bytes) -> bytes | None:
    """A picture of the same size with about eight blurred blocks; None if unreadable.

    Nothing but the pixels is kept: no profile, text or time.
    """
    from PIL import Image, ImageFilter

    try:
        with Image.open(io.BytesIO(data)) as opened:
            image = _plain(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    long = max(image.size)
    blocks = max(1, min(_BLOCKS, long // _SMALLEST_BLOCK))
    few = tuple(max(1, round(side * blocks / long)) for side in image.size)
    coarse = image.resize((few[0], few[1]), Image.Resampling.BOX)
    blown_up = coarse.resize(image.size, Image.Resampling.NEAREST)
    soft = blown_up.filter(ImageFilter.GaussianBlur(long / blocks / 2))
    out = io.BytesIO()
    Image.frombytes(soft.mode, soft.size, soft.tobytes()).save(out, format="PNG")
    return out.getvalue()


def _plain(image: PilImage) -> PilImage:
    """Eight bits per channel, grey or RGB, no transparency."""
    if image.mode.startswith("I"):
        return image.convert("I").point(lambda v: v / 256).convert("L")
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def _with_image(shown: Shown, name: str | None) -> Shown:
    return shown.model_copy(update={"image": name})


def _inside(name: str) -> bool:
    """True for a relative path that stays inside its folder."""
    path = PurePosixPath(name)
    parts = path.parts
    return bool(parts) and not path.is_absolute() and ".." not in parts
