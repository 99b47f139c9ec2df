"""What a user gave the Auditor, checked: each fault is named before anything runs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privaudit.config import AuditConfig, Client, Knowledge, Split
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from privaudit.defenses import Defense


def placed(model: nn.Module, device: str | torch.device | None) -> nn.Module:
    """The model where it is wanted: a copy, should that be elsewhere."""

    parameter = next(model.parameters(), None)
    if device is None or parameter is None:
        return model
    wanted = usable_device(device)
    same = parameter.device.type == wanted.type
    if same and wanted.index in (None, parameter.device.index):
        return model
    return copy.deepcopy(model).to(wanted)


def usable_device(device: str | torch.device) -> torch.device:
    """A device that torch can use here.

    Raises:
        ConfigError: It cannot.
    """
    import torch

    try:
        wanted = torch.device(device)
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            "Auditor.device",
            expected="a device that torch can use here",
            got=f"{str(device)!r} ({str(error).splitlines()[0]})",
            hint="Leave it out to run where the model is.",
        ) from error
    return wanted


def value_bounds(given: Any) -> tuple[float, float] | None:
    """Two finite numbers, the smaller first."""
    if given is None:
        return None
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not -math.inf < low < high < math.inf:
        raise ConfigError(
            "Auditor.value_range",
            expected="(low, high), two finite numbers, low < high",
            got=repr(given),
            hint="Name the values of black and white, such as (0, 4095).",
        )
    return low, high


def name_of(function: Callable[..., Any]) -> str:
    """What a callable is called in a record."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def refuse_resume(resume: str | Path | None, what: str) -> None:
    """Refuse a folder to resume from where nothing is kept.

    Raises:
        ConfigError: One was given.
    """
    if resume is not None:
        raise ConfigError(
            "Auditor.audit(resume=…)",
            expected="an audit of gradients of images",
            got=what,
            hint="Leave resume out.",
        )


def whole(model: nn.Module | None, split: Any) -> nn.Module:
    """The model; made of its two halves where these were given."""
    if isinstance(split, tuple) and len(split) == 2:
        from privaudit.exposure import Pair

        return Pair(*split)
    if model is None:
        raise ConfigError(
            "Auditor(model)",
            expected="a model",
            got="None",
            hint="Only with split=(client, server) is there no model to pass.",
        )
    return model


def named_split(split: Any) -> Split | None:
    """The cut as it is recorded; ``client`` for (client, server).

    Raises:
        ConfigError: Not a way to name a cut.
    """
    if isinstance(split, tuple):
        return Split("client")
    if split is None or isinstance(split, Split):
        return split
    if isinstance(split, str):
        return Split(split)
    raise ConfigError(
        "Auditor.split",
        expected="a name, Split(...), or (client, server)",
        got=type(split).__name__,
        hint='Name a module, such as split="blocks.6".',
    )


def refuse_with_split(
    config: AuditConfig, priors: Iterable[str], known_priors: Iterable[str]
) -> None:
    """Refuse what does not go together with a cut, or not without one.

    Args:
        config: Of the audit.
        priors: Names that were handed over.
        known_priors: Names that an attack reads; another one would be lost in silence.

    Raises:
        ConfigError: A setting of training with a cut; priors without one, or unknown.
    """
    if config.split is None:
        if list(priors):
            raise ConfigError(
                "Auditor.priors",
                expected="split=: priors are of attacks on features",
                got=", ".join(sorted(priors)),
                hint="Leave priors out, or name the cut.",
            )
        return
    client = config.client.model_dump(exclude={"mode", "batch_size"})
    usual = Client().model_dump(exclude={"mode", "batch_size"})
    trains = [f"client.{n}" for n, value in client.items() if value != usual[n]]
    trains += ["training_step"] if config.training_step is not None else []
    trains += ["loss"] if config.loss != "cross_entropy" else []
    trains += ["knowledge"] if config.knowledge != Knowledge() else []
    if trains:
        raise ConfigError(
            "Auditor.split",
            expected="a cut alone: a device that sends features does not train",
            got=f"split= and {', '.join(trains)}",
            hint="A split model sends features, a training step a gradient: audit "
            "each by itself.",
        )
    strange = sorted(set(priors) - set(known_priors))
    if strange:
        raise ConfigError(
            "Auditor.priors",
            expected=f"one of {', '.join(sorted(set(known_priors)))}",
            got=", ".join(strange),
            hint="No attack reads it under this name: check the spelling.",
        )


def refuse_both(loss: object, training_step: object) -> None:
    """Refuse a loss beside a training step.

    Raises:
        ConfigError: Both were given.
    """
    if loss is not None and training_step is not None:
        raise ConfigError(
            "Auditor.loss",
            expected="loss= or training_step=",
            got="both",
            hint="A training step computes its own loss.",
        )


def settled(defenses: Iterable[Any], exposure: str) -> list[Defense]:
    """The defenses that do something, each checked.

    Args:
        defenses: As the user gave them.
        exposure: ``features`` or ``gradient``.

    Raises:
        ConfigError: Not a defense, of another exposure, or one that was not trained.
    """
    from privaudit.defenses import Defense, Undefended

    kept: list[Defense] = []
    for one in defenses:
        if not isinstance(one, Defense):
            raise ConfigError(
                "Auditor.defenses",
                expected="instances of Defense, such as TokenShuffle()",
                got=type(one).__name__,
                hint="privaudit.defenses.DEFENSES lists them.",
            )
        if exposure not in one.exposures:
            raise one.misplaced(exposure)
        one.require_fitted()
        kept += [] if isinstance(one, Undefended) else [one]
    return kept
