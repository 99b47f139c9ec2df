"""What a recorded update says of its client, held against what the caller says."""

from __future__ import annotations

from typing import Any

from privaudit._update import Update
from privaudit.config import AuditConfig
from privaudit.errors import ConfigError
from privaudit.types import Autocast


def autocast_of(update: Update, config: AuditConfig) -> Autocast | None:
    """What the step ran under: as recorded, or as the caller says."""
    noted, given = update.facts.autocast, config.client.autocast
    if noted and given and noted != given:
        raise ConfigError(
            "Auditor.client.autocast",
            expected=f"{noted!r}, as in the recorded step",
            got=repr(given),
            hint="Leave it out: the recording says what the step ran under.",
        )
    return noted or given


def steps_of(update: Update, config: AuditConfig) -> dict[str, Any]:
    """How a weight difference came about: as noted in it, else as the caller says."""
    facts, client = update.facts, config.client
    if facts.source != "weight difference":
        return {}
    noted = {
        "local_steps": facts.local_steps,
        "lr": facts.lr,
        "optimizer": facts.optimizer,
        "momentum": facts.momentum,
    }
    for name, value in noted.items():
        given = getattr(client, name)
        if name in client.model_fields_set and given != value:
            raise ConfigError(
                f"Auditor.client.{name}",
                expected=f"{value!r}, as in the recorded update",
                got=repr(given),
                hint="Leave it out, or name it in Update.from_delta.",
            )
    return noted
