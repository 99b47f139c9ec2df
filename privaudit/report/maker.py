"""How a section is declared: a function with its place on the page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from privaudit.errors import ConfigError
from privaudit.report.blocks import Section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord

Build = Callable[[AuditRecord, Pictures], Section | None]


@dataclass(frozen=True)
class Maker:
    """A section before it meets a record. ``order`` is its place on the page."""

    order: int
    build: Build


def section(order: int) -> Callable[[Build], Maker]:
    """Declare a function as a section; it returns None where it has nothing to say."""

    def declare(build: Build) -> Maker:
        return Maker(order=order, build=build)

    return declare


def collect_sections(namespace: Mapping[str, Any]) -> tuple[Maker, ...]:
    """The sections that ``namespace`` imported, in the order of the page.

    Raises:
        ConfigError: Two sections claim one place.
    """
    makers = {id(m): m for m in namespace.values() if isinstance(m, Maker)}
    ordered = sorted(makers.values(), key=lambda m: m.order)
    for one, other in itertools.pairwise(ordered):
        if one.order == other.order:
            raise ConfigError(
                f"privaudit.report.sections, order {one.order}",
                expected="one section per place",
                got=f"{one.build.__module__} and {other.build.__module__}",
                hint="Give one of them another order.",
            )
    return tuple(ordered)
