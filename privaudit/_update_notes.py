"""What the report says of a recorded update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privaudit._update import Update
from privaudit.attacks._forms import EXACT
from privaudit.inventory import Finding


def notes_on(
    update: Update, left_out: Mapping[str, str], *, known: bool
) -> list[Finding]:
    """Source, rounding, and what was left out.

    Args:
        update: The update.
        left_out: Tensors of it that are no gradients, with the reason.
        known: Whether the client's masks are known.
    """
    facts = update.facts
    passes = facts.micro_batches or 1
    texts = [
        f"Source: {facts.source}, privaudit {facts.privaudit}, torch {facts.torch}. "
        "Whether the loss was a mean or a sum over the batch does not show."
    ]
    if passes > 1:
        texts.append(f"Gradients of {passes} backward passes were added up.")
    if not facts.weights:
        texts.append("With which weights it was made is not known, so not checked.")
    if not known:
        texts.append(
            "The client's dropout masks are not known to the audit: exact claims were "
            "held against the images, not against the masks."
        )
    texts += [f"{name} was left out: {why}." for name, why in left_out.items()]
    found = [_note("recorded-update", "A recorded gradient", " ".join(texts))]
    if facts.rounding is not None and facts.rounding >= EXACT:
        found.append(
            _note(
                "update-rounded",
                "Subtracting weights has rounded the gradient",
                f"Up to {facts.rounding:.1e} of it (relative). An exact match "
                f"(below {EXACT:g}) may be out of reach though the image leaks.",
                severity="warning",
            )
        )
    return found


def _note(code: str, title: str, text: str, *, severity: Any = "info") -> Finding:
    return Finding(code=code, severity=severity, where="update", title=title, text=text)
