"""What commands share: build the user's model, show, save, and give the exit code."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privaudit import _options as read
from privaudit._flags import Redact
from privaudit._terminal import say, show_attacks, show_findings
from privaudit.errors import MissingDependencyError, ReportError

if TYPE_CHECKING:
    from privaudit.result import AuditResult
    from privaudit.verdict import Verdict


def finish(result: AuditResult, out: Path, redact: Redact, *, pdf: bool = False) -> int:
    """Show, save and judge. A PDF that cannot be drawn takes nothing from the rest."""
    show_attacks(result)
    show_findings(result.record.inventory)
    for skipped in result.record.skipped_inputs:
        say(f"Not audited: {skipped.name}: {skipped.reason}")
    for place in [out, out / "report.pdf"] if pdf else [out]:
        try:
            _save(result, place, redact)
        except (MissingDependencyError, ReportError) as error:
            if place.suffix != ".pdf":
                raise
            say(str(error))
    explain(result.verdict)
    return result.verdict.exit_code


def _save(result: AuditResult, out: Path, redact: Redact) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        place = result.save(out, redact=redact)
    for warning in caught:
        say(str(warning.message))
    say(f"Report: {place / 'report.html' if place.is_dir() else place}")


def explain(verdict: Verdict) -> None:
    """Causes and warnings beside, the final line on standard output."""
    for cause in [*verdict.causes, *verdict.warnings]:
        say(f"{cause.text}. {cause.remedy}")
    print(verdict.line)


def step(spec: str | None, mode: str | None) -> Any:
    """The user's training step, which leaves no choice of the mode."""
    from privaudit._loading import load_training_step

    if spec is not None and mode == "train":
        raise read.bad(
            "--mode", "as_is, or nothing, beside --training-step: modules keep the "
            "modes that the factory gave them", mode,
        )  # fmt: skip
    with own_output():
        return None if spec is None else load_training_step(spec)


def own_output() -> contextlib.redirect_stdout[Any]:
    """What the user's model prints goes beside the final line, never before it."""
    return contextlib.redirect_stdout(sys.stderr)


def build(spec: str, weights: Path | None) -> Any:
    """The user's model with its weights."""
    from privaudit._loading import load_model, load_weights

    with own_output():
        model = load_model(spec)
    if weights is not None:
        for note in load_weights(model, weights):
            say(note)
    return model
