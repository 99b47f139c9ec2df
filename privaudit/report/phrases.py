"""How numbers and names are put into words, the same everywhere on the page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from privaudit.config import bands_of

DASH = "–"

_METRICS = {
    "ssim": "SSIM",
    "ms_ssim": "MS-SSIM",
    "psnr": "PSNR (dB)",
    "psnr_db": "PSNR (dB)",
    "mse": "MSE",
    "mae": "MAE",
    "lpips": "LPIPS",
    "dino": "DINO similarity",
    "re_identification": "Re-identification",
    "token_set_recall": "Token set recall",
    "token_accuracy": "Token accuracy",
}

MEANINGS = {
    "ssim": "Structural similarity of two pictures: 1 is the same picture, unrelated "
    "pictures stay near 0.",
    "ms_ssim": "Structural similarity over several sizes of the picture: 1 is the "
    "same picture.",
    "psnr": "Peak signal-to-noise ratio in decibels: higher is a closer copy; "
    "identical pictures have no finite value.",
    "psnr_db": "Peak signal-to-noise ratio in decibels: higher is a closer copy; "
    "identical pictures have no finite value.",
    "mse": "Mean squared difference of the pixels: 0 is the same picture.",
    "mae": "Mean absolute difference of the pixels: 0 is the same picture.",
    "dino": "Likeness as a network sees it that was trained without labels: 1 is the "
    "same picture.",
    "lpips": "Distance as a trained network sees it: 0 is the same picture.",
    "re_identification": "Share of images whose reconstruction is closest to its own "
    "original among all originals.",
    "token_set_recall": "Share of a sample's distinct token ids that were found, "
    "without their order.",
    "token_accuracy": "Share of positions whose token id was found.",
}

STATES = {
    "exact": "the recomputed observation matches, relative error below 1e-4: the "
    "image is recovered",
    "converged": "the matching loss fell to 1 % of its way to the loss at the truth",
    "plateau": "stopped by itself after all its restarts without a match",
    "stopped": "ran out of budget",
    "failed": "broke off with an error",
    "skipped": "left out for an allowed reason",
    "missing": "needed for the verdict and not run",
}


def number(value: float | None) -> str:
    """Four decimals for scores, fewer for large and powers of ten for tiny values."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "not a number")
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.2f}"
    elif size >= 0.0005 or value == 0:
        text = f"{value:.4f}"
    else:
        text = f"{value:.2e}"
    return text.replace("-", "−", 1) if value < 0 else text


def signed(value: float) -> str:
    """A number that always shows its sign."""
    return number(value) if value < 0 else f"+{number(value)}"


def plural(count: int, one: str, many: str = "") -> str:
    """``1 image``, ``3 images``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def dotted(parts: Iterable[str]) -> str:
    """Parts of one note, side by side."""
    return " · ".join(parts)


def metric(name: str) -> str:
    """The name of a metric as readers know it."""
    return _METRICS.get(name, name.replace("_", " "))


def seconds(value: float) -> str:
    """A duration in the unit that people would use."""
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    if value >= 120:
        return f"{value / 60:.1f} min"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def moment(iso: str) -> str:
    """An ISO 8601 time in UTC as people write it; anything else as it is."""
    try:
        when = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    if when.tzinfo is not None:
        when = when.astimezone(UTC)
    return f"{when:%Y-%m-%d %H:%M} UTC"


def share(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.1f} %".replace(".0 %", " %")


def setting(value: Any) -> str:
    """A setting as it reads in a configuration file."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def sentence(text: str) -> str:
    """The text with a full stop and, unless it starts with a name, a capital."""
    text = text.strip()
    if not text:
        return text
    ending = "" if text[-1] in ".!?…" else "."
    first = text.split(maxsplit=1)[0].strip("(\"',;:.!?")
    if first.replace("-", "").replace("'", "").isalpha():
        text = text[0].upper() + text[1:]
    return f"{text}{ending}"


def bands(chosen: Sequence[int] | None, channels: int) -> str:
    """What a picture leaves out; empty where it leaves nothing out."""
    numbers = bands_of(chosen, channels)
    if len(set(numbers)) == channels:
        return ""
    few = ", ".join(map(str, numbers))
    return f"band{'s' if len(numbers) > 1 else ''} {few} of {channels}"


def bands_explained(chosen: Sequence[int] | None, channels: int) -> str:
    """The same in a sentence or two, for readers who never heard of bands."""
    if not bands(chosen, channels):
        return ""
    numbers = bands_of(chosen, channels)
    how = "in grey" if len(numbers) == 1 else "as red, green and blue"
    return (
        f"These images have {channels} bands. Pictures show {bands(chosen, channels)} "
        f"{how}; what the others hold is not shown. Scores and the verdict use all "
        "bands."
    )
