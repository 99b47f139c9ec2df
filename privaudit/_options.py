"""What the words behind command-line options mean."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError

    from privaudit.defenses import Defense
    from privaudit.verdict import Policy


def policy(max_ssim: float | None, limit: list[str] | None) -> Policy:
    """The default limits with those of the options."""
    from privaudit.verdict import Policy

    return changed(Policy(), max_ssim, limit)


def changed(policy: Policy, max_ssim: float | None, limit: list[str] | None) -> Policy:
    """``policy`` with the limits of the options."""
    if max_ssim is not None:
        policy = policy.with_limit("ssim", max_ssim)
    for entry in limit or []:
        metric, equals, value = entry.partition("=")
        if not equals:
            raise bad("--limit", "metric=number", entry)
        policy = policy.with_limit(metric.strip(), number(value, "--limit"))
    return policy


def budget(text: str) -> Any:
    """A preset name, or seconds."""
    from privaudit.config import Budget

    if not text.replace(".", "", 1).isdecimal():
        return text
    if float(text) == 0:
        raise bad("--budget", "quick, standard, thorough, or seconds above 0", text)
    return Budget(seconds=float(text))


def numbers(text: str | None, name: str) -> list[float] | None:
    """One number per channel."""
    if text is None:
        return None
    return [number(word, f"--{name}") for word in words(text)]


def bands(text: str | None) -> list[int] | None:
    """Bands of an image, counted from 1."""
    if text is None:
        return None
    chosen = words(text)
    if not all(word.isdecimal() for word in chosen):
        raise bad("--show-bands", "one or three numbers, such as 4,3,2", text)
    return [int(word) for word in chosen]


def number(text: str, where: str) -> float:
    """A number, or an error that names the option."""
    try:
        return float(text)
    except ValueError:
        raise bad(where, "numbers", text) from None


def fraction(value: float, where: str) -> float:
    """From 0 to below 1."""
    if not 0 <= value < 1:
        raise bad(where, "a number from 0 to below 1", str(value))
    return value


def rate(value: float | None) -> float | None:
    """A learning rate above 0, if there is one."""
    if value is not None and not 0 < value < math.inf:
        raise bad("--lr", "a number above 0", str(value))
    return value


def size(text: str | None) -> tuple[int, int] | None:
    """(height, width)."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if not all(s.isdecimal() and int(s) > 0 for s in sides) or len(sides) > 2:
        raise bad("--size", "N or HEIGHTxWIDTH", text)
    return int(sides[0]), int(sides[-1])


def attacks(text: str) -> Any:
    """``auto``, ``all``, or names."""
    return text if text in ("auto", "all") else words(text)


def split(name: str | None, layout: Any, prefix_tokens: int | None) -> Any:
    """Where to cut, or nothing.

    Raises:
        ConfigError: A layout without a cut.
    """
    from privaudit.config import Split

    if name is not None:
        return Split(name, layout=layout, prefix_tokens=prefix_tokens)
    if layout is not None or prefix_tokens is not None:
        raise bad("--split", "the cut that --layout is about", "nothing")
    return None


def priors(
    public: list[Path] | None,
    inverse_network: Path | None,
    diffusion: str | None,
    load: Callable[[list[Path]], Any],
) -> dict[str, object]:
    """What the attacker on features has beside the model.

    Raises:
        ConfigError: A prior that is not there.
    """
    found: dict[str, object] = {}
    if public:
        found["public_images"] = load(public)
    if inverse_network is not None:
        found["inverse_network"] = inverse_network
    if diffusion is not None:
        from privaudit.priors.diffusion import DIFFUSION_PRIORS, named

        named(diffusion, DIFFUSION_PRIORS).check()
        found["diffusion"] = diffusion
    return found


def defenses(given: list[str] | None) -> list[Defense]:
    """Defenses by name, with their settings.

    Raises:
        ConfigError: An unknown name or setting, or a value that it cannot have.
    """
    from pydantic import ValidationError

    from privaudit._plugin import by_name
    from privaudit.defenses import DEFENSES

    found: list[Defense] = []
    for entry in given or []:
        name, _, listed = entry.partition(":")
        pairs = [p.partition("=") for p in words(listed)]
        if not all(equals for _, equals, _ in pairs):
            raise bad("--defense", "name, or name:setting=value,…", entry)
        settings = {setting.strip(): value for setting, _, value in pairs}
        try:
            found.append(by_name(DEFENSES, name.strip(), settings))
        except ValidationError as error:
            raise bad("--defense", setting_fault(error), entry) from error
    return found


def setting_fault(error: ValidationError) -> str:
    """The first fault of a plug-in's settings: which, and what it may be."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def countermeasures(text: str) -> Any:
    """``auto``, ``none``, or names."""
    return text if text in ("auto", "none") else words(text)


def bad(where: str, expected: str, got: str) -> ConfigError:
    """An error about one option."""
    return ConfigError(where, expected=expected, got=repr(got), hint="See --help.")


def words(text: str) -> list[Any]:
    """Parts between commas and spaces."""
    return [w for w in text.replace(",", " ").split() if w]


def check_out(out: Path) -> None:
    """Try the place before an audit of minutes, not after it."""
    if out.suffix.lower() not in ("", ".html", ".json", ".pdf"):
        raise bad("--out", "a folder (no suffix), .html, .pdf or .json", str(out))
    if out.is_dir() if out.suffix else out.is_file():
        kind = "file" if out.suffix else "folder"
        raise bad("--out", f"a {kind}", f"{out}, which is there and is something else")
    folder = out.parent if out.suffix else out
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise bad("--out", "a place that can be written", f"{out} ({why})") from (error)
