"""How a family of plug-ins is declared and collected: by its import list."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from privaudit.errors import ConfigError


class Plugin(BaseModel):
    """Base of everything that can be added to: attacks, metrics and so on.

    A subclass is final and frozen; its fields are its settings. It sets ``name``,
    the word that users write.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """All settings as plain JSON values."""
        return self.model_dump(mode="json")

    def settings_given(self) -> dict[str, Any]:
        """The settings that the user passed, as plain JSON values."""
        return self.model_dump(mode="json", include=set(self.model_fields_set))


P = TypeVar("P", bound=Plugin)


def collect(base: type[P], namespace: Mapping[str, Any]) -> Mapping[str, type[P]]:
    """Gather the concrete subclasses of ``base`` that ``namespace`` imported.

    Third parties add theirs through the entry-point group ``privaudit.<base>s``,
    such as ``privaudit.attacks``.

    Raises:
        ConfigError: Two plug-ins carry one name.
    """
    found: dict[str, type[P]] = {}
    group = f"privaudit.{base.__name__.lower()}s"
    candidates = [*namespace.values(), *(e.load() for e in entry_points(group=group))]
    for candidate in candidates:
        if not _is_concrete(candidate, base):
            continue
        known = found.setdefault(candidate.name, candidate)
        if known is not candidate:
            raise ConfigError(
                f"{group}[{candidate.name!r}]",
                expected="one plug-in of this name",
                got=f"{_path(known)} and {_path(candidate)}",
                hint="Rename one of them.",
            )
    return MappingProxyType(found)


def by_name(
    family: Mapping[str, type[P]], name: str, settings: Mapping[str, Any] | None = None
) -> P:
    """Build the plug-in called ``name``.

    Raises:
        ConfigError: No such name; the known ones are listed.
    """
    if name not in family:
        raise ConfigError(
            "plug-in name",
            expected=f"one of {', '.join(sorted(family))}",
            got=repr(name),
            hint="Check the spelling, or pass an instance.",
        )
    return family[name](**(settings or {}))


def _is_concrete(candidate: object, base: type[P]) -> bool:
    return (
        inspect.isclass(candidate)
        and issubclass(candidate, base)
        and candidate is not base
        and not inspect.isabstract(candidate)
    )


def _path(cls: type[Plugin]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
