"""What the command line shows beside its one final line: tables and findings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from privaudit.inventory.records import Inventory
    from privaudit.result import AuditResult


def say(text: str) -> None:
    """One line for the reader; standard output is kept for the final line."""
    print(text, file=sys.stderr)


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
    for finding in inventory.findings:
        console.print(f"\n[{finding.severity}] {finding.title} ({finding.where})")
        console.print(f"{finding.text} {finding.remedy}".strip())


def _console(*, stderr: bool = False) -> Console:
    """Names of layers hold brackets and dots: nothing is markup, nothing coloured."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False)
