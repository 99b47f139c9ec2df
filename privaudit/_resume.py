"""An audit that goes on where it was interrupted: one cell per attack and client."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from privaudit import __version__
from privaudit._kept import UNREACHED, Finished
from privaudit._outcomes import Reader, Writer
from privaudit._provenance import code_digest, model_digest, tensor_digest, text_digest
from privaudit.attacks.base import INTERRUPTED
from privaudit.errors import ConfigError
from privaudit.inventory import Finding
from privaudit.study import CellKey, Store

if TYPE_CHECKING:
    from torch import nn

    from privaudit._session import Session
    from privaudit.attacks import Attack

KIND = "audit-client"
_OWN = ("attack", "attack_settings", "attack_code", "client")
"""Settings that tell the cells of one audit apart."""
_SHOWN = 8
"""Differences that an error lists."""


@dataclass
class Resumed:
    """What a folder keeps of one audit; see :class:`~privaudit._kept.Kept`.

    Attributes:
        store: In the folder.
        audit: What all its cells have in common.
        device: Where the audit runs.
        said: What was found damaged, one sentence each.
        recalled: Finished attacks on clients that were not run again.
    """

    store: Store
    audit: CellKey
    device: torch.device
    said: list[str] = field(default_factory=list)
    recalled: int = 0

    def recall(self, attack: Attack, number: int) -> Finished | None:
        """What an earlier run finished for client ``number``; None: nothing."""
        cell = self.store.get(self._key(attack, number))
        if cell is None:
            return None
        values: Any = cell.values
        outcome = Reader(cell.arrays(), self.device).read(values["outcome"])
        self.recalled += 1
        return Finished(outcome, float(values["seconds"]), tuple(values["learnt"]))

    def keep(self, attack: Attack, number: int, finished: Finished) -> None:
        """Keep what ended; what was interrupted or broke is tried again."""
        outcome = finished.outcome
        if outcome.reason in (INTERRUPTED, UNREACHED) or outcome.state == "failed":
            return
        writer = Writer()
        values = {
            "outcome": writer.write(outcome),
            "seconds": finished.seconds,
            "learnt": list(finished.learnt),
        }
        self.store.put(self._key(attack, number), values, writer.arrays)

    def findings(self) -> list[Finding]:
        """What a reader of the report must know."""
        found = [
            Finding(
                code="resume-damaged", severity="warning", where="resume",
                title="A damaged state was computed again", text=text,
            )
            for text in self.said
        ]  # fmt: skip
        if self.recalled:
            text = (
                f"{self.recalled} attacks on clients were finished by an earlier run "
                "of this audit and not run again. Their seconds count as spent."
            )
            found.append(
                Finding(
                    code="resumed", severity="info", where="resume",
                    title="Resumed from an earlier run", text=text,
                )
            )  # fmt: skip
        return found

    def _key(self, attack: Attack, number: int) -> CellKey:
        own = {
            "attack": attack.name,
            "attack_settings": attack.settings(),
            "attack_code": code_of(type(attack).run),
            "client": number,
        }
        settings = {**self.audit.settings, **own}
        return self.audit.model_copy(update={"settings": settings})


def resumed(
    session: Session, folder: str | Path, callables: Sequence[object]
) -> Resumed:
    """Open ``folder`` for the audit of ``session``.

    Raises:
        ConfigError: It holds another audit; the differences are listed.
        ReportError: It cannot be written.
    """
    said: list[str] = []
    store = Store(folder, said.append)
    audit = _audit_key(session, callables)
    for cell in store.cells(KIND):
        settings = {n: v for n, v in cell.key.settings.items() if n not in _OWN}
        other = cell.key.model_copy(update={"settings": settings})
        if other != audit:
            raise _another(folder, audit.differences(other))
    return Resumed(store, audit, session.first.batch.images.device, said)


def _audit_key(session: Session, callables: Sequence[object]) -> CellKey:
    """Everything that decides what the attacks of an audit give back.

    Limits and pictures are left out: they are applied afterwards.
    """
    labels = session.labels.values
    config = session.config.model_dump(mode="json", exclude={"policy", "shown_bands"})
    stochastic = [c.model_dump(mode="json") for c in session.inventory.stochastic]
    return CellKey(
        kind=KIND,
        version=__version__,
        model=_fingerprint(session.model),
        data=tensor_digest(session.sample.images),
        settings={
            "config": config,
            "labels": "none" if labels is None else tensor_digest(labels),
            "stochastic": stochastic,
            "loss_and_step": [code_of(c) for c in callables],
            "code": code_digest(),
            "torch": torch.__version__,
        },
    )


def _fingerprint(model: nn.Module) -> str:
    """Weights, layout, modes, and the code that runs: a dropout rate is no weight."""
    kinds = {type(m) for m in model.modules()}
    code = sorted(f"{k.__qualname__} {code_of(k.forward)}" for k in kinds)
    modes = [m.training for m in model.modules()]
    layout = re.sub(r"0x[0-9a-f]+", "", repr(model))
    return text_digest(f"{model_digest(model)} {layout} {code} {modes}")


def code_of(function: object) -> str:
    """Digest of what a function does, as far as its own code tells; "none" without."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        called = vars(type(function)).get("__call__")
        code = getattr(called, "__code__", None)
    if not isinstance(code, CodeType):
        return "none"
    digest = hashlib.sha256()
    _add_code(digest, code)
    return digest.hexdigest()


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        elif isinstance(constant, frozenset):  # in no order that lasts
            digest.update(repr(sorted(map(repr, constant))).encode())
        else:
            digest.update(repr(constant).encode())


def _another(folder: str | Path, differences: Sequence[str]) -> ConfigError:
    shown = list(differences[:_SHOWN])
    if len(differences) > _SHOWN:
        shown.append(f"and {len(differences) - _SHOWN} more")
    return ConfigError(
        f"Auditor.audit(resume={str(folder)!r})",
        expected="the audit that was begun in this folder",
        got="another one: " + "; ".join(shown),
        hint="Resume it with what it was begun with, or give this one another folder.",
    )
