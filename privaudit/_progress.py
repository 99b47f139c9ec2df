"""How far an attack is: searches say it here, whoever watches shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """One word on progress.

    Attributes:
        label: Attack and client.
        done: Iterations so far.
        total: Iterations at most.
        loss: Total loss at the moment.
    """

    label: str
    done: int
    total: int
    loss: float


Watcher = Callable[[Tick], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_label: ContextVar[str] = ContextVar("label", default="")


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Send all ticks inside to ``watcher``."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Name the ticks inside."""
    token = _label.set(label)
    try:
        yield
    finally:
        _label.reset(token)


def tick(done: int, total: int, loss: float) -> None:
    """Say how far the present search is; costs nothing when nobody watches."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(Tick(_label.get(), done, total, loss))
