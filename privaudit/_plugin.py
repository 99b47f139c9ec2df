"""How a family of plug-ins is declared and collected: by its import list."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeGuard, TypeVar

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
    such as ``privaudit.attacks``; these are loaded on first use, so that a plug-in
    may import the base class from here.

    Raises:
        ConfigError: Two plug-ins carry one name.
    """
    own: dict[str, type[P]] = {}
    for candidate in namespace.values():
        _add(own, candidate, base)
    return Registry(base, own)


class Registry(Mapping[str, type[P]]):
    """Plug-ins by name: our own, and those of installed packages."""

    def __init__(self, base: type[P], own: Mapping[str, type[P]]) -> None:
        self._base, self._own = base, own
        self._all: dict[str, type[P]] | None = None

    def __getitem__(self, name: str) -> type[P]:
        return self._found()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())

    def _found(self) -> dict[str, type[P]]:
        if self._all is None:
            found = dict(self._own)
            for point in entry_points(group=_group(self._base)):
                _add(found, _load(point), self._base)
            self._all = found
        return self._all


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(
            f"entry point {point.group}: {point.name}",
            expected=f"a plug-in at {point.value}",
            got=f"{type(error).__name__}: {error}",
            hint="Mend or uninstall the package that declares it.",
        ) from error


def _add(found: dict[str, type[P]], candidate: object, base: type[P]) -> None:
    if not _is_concrete(candidate, base):
        return
    known = found.setdefault(candidate.name, candidate)
    if known is not candidate:
        raise ConfigError(
            f"{_group(base)}[{candidate.name!r}]",
            expected="one plug-in of this name",
            got=f"{_path(known)} and {_path(candidate)}",
            hint="Rename one of them.",
        )


def _group(base: type[Plugin]) -> str:
    return f"privaudit.{base.__name__.lower()}s"


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


def _is_concrete(candidate: object, base: type[P]) -> TypeGuard[type[P]]:
    return (
        inspect.isclass(candidate)
        and issubclass(candidate, base)
        and candidate is not base
        and not inspect.isabstract(candidate)
    )


def _path(cls: type[Plugin]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
