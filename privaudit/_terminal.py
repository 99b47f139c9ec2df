"""What the command line shows beside its one final line: tables and findings."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from privaudit._progress import Tick
    from privaudit.inventory.records import Inventory
    from privaudit.result import AuditResult


def say(text: str) -> None:
    """One line for the reader; standard output is kept for the final line."""
    print(text, file=sys.stderr)


@contextmanager
def progress() -> Iterator[None]:
    """A bar per search on a terminal, a line every half minute elsewhere."""
    from privaudit._progress import watched_by

    if not sys.stderr.isatty():
        with watched_by(_Lines()):
            yield
        return
    from rich.progress import Progress

    console = _console(stderr=True)
    with Progress(console=console, transient=True) as bars, watched_by(_Bars(bars)):
        yield


class _Lines:
    """Plain lines, seldom: for logs."""

    _EVERY_S = 30.0

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, tick: Tick) -> None:
        now = time.monotonic()
        if now - self._last >= self._EVERY_S:
            self._last = now
            say(f"{tick.label}: {tick.done} of {tick.total}, loss {tick.loss:.2e}")


class _Bars:
    """One bar per search, with the time left."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, tick: Tick) -> None:
        if tick.label not in self._tasks:
            task = self._bars.add_task(tick.label, total=tick.total)
            self._tasks[tick.label] = task
        self._bars.update(self._tasks[tick.label], completed=tick.done)


def show_attacks(result: AuditResult) -> None:
    """Each attack with its state and its worst score."""
    from rich.table import Table

    table = Table("attack", "state", "images", "worst SSIM", "seconds", box=None)
    for label, attack in result.attacks.items():
        values = [s.value for s in attack.scores.get("ssim", []) if s.value is not None]
        table.add_row(
            label,
            attack.state,
            str(len(values)) if values else "-",
            f"{max(values):.4f}" if values else "-",
            f"{attack.record.seconds:.1f}" if attack.record.outcomes else "-",
        )
    _console(stderr=True).print(table)


def show_findings(inventory: Inventory) -> None:
    """One line per finding."""
    for finding in inventory.findings:
        say(f"[{finding.severity}] {finding.title} ({finding.where})")


def show_inventory(inventory: Inventory) -> None:
    """Every random draw, and the findings in full."""
    from rich.table import Table

    console = _console()
    console.print(
        f"{inventory.model}: input {inventory.input_shape}, shares "
        f"{inventory.trainable} of {inventory.parameters} values"
    )
    table = Table("stochastic call", "kind", "p", "shape", "in eval", box=None)
    for column in table.columns:
        column.overflow = "fold"  # a cut name finds no layer
    for call in inventory.stochastic:
        p = "-" if call.p is None else f"{call.p:.3g}"
        shape = "x".join(map(str, call.shape)) if call.active else "inactive"
        table.add_row(call.name, call.kind, p, shape, "yes" if call.in_eval else "no")
    console.print(table if inventory.stochastic else "stochastic calls: none found")
    for seen in inventory.detections:
        sure = f"confidence {seen.confidence:.2f}"
        console.print(f"defense: {seen.defense}, {sure}: {seen.evidence}")
    for finding in inventory.findings:
        console.print(f"\n[{finding.severity}] {finding.title} ({finding.where})")
        console.print(f"{finding.text} {finding.remedy}".strip())


def _console(*, stderr: bool = False) -> Console:
    """Names of layers hold brackets and dots: nothing is markup, nothing coloured."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False)
