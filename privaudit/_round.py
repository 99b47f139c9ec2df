"""Record a whole local round: the weight difference of several optimiser steps."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from privaudit._update import Update
from privaudit._update_file import StepMode
from privaudit.config import require_one_step
from privaudit.errors import ConfigError
from privaudit.exposure import shared_parameters, unwrap
from privaudit.exposure.precision import autocast_now
from privaudit.tape import Tape
from privaudit.types import Autocast

_WHERE = "record_step(model, local_steps=)"
_PLAIN = {"weight_decay": 0, "dampening": 0, "nesterov": False, "maximize": False}


class RoundWatch:
    """Takes the weights before the first step, and counts the steps."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self._given, self._steps = model, steps
        self._model, _ = unwrap(model)
        self._shared = shared_parameters(self._model)
        self._ids = {id(p) for p in self._shared.values()}
        self._before: dict[str, Tensor] = {}
        self._done = 0
        self._rates: tuple[float, float] | None = None
        self._facts: dict[str, Any] = {}

    def start(self, stack: ExitStack) -> None:
        """Put the hooks in place; ``stack`` takes them away."""
        seen = self._given.register_forward_pre_hook(self._forward, with_kwargs=True)
        stack.callback(seen.remove)
        stack.callback(register_optimizer_step_pre_hook(self._pre).remove)
        stack.callback(register_optimizer_step_post_hook(self._post).remove)

    def update(self, tapes: tuple[Tape, ...]) -> Update:
        """What was recorded.

        Raises:
            ConfigError: Another number of steps, or none that changed anything.
        """
        if self._done != self._steps or self._rates is None:
            raise ConfigError(
                _WHERE,
                expected=f"{self._steps} steps of an optimiser of {self._name}",
                got=str(self._done),
                hint="Say how many there are. A GradScaler skips steps that overflow.",
            )
        lr, momentum = self._rates
        after = {n: p.detach().cpu() for n, p in self._shared.items()}
        found = Update.from_delta(
            self._before, after, lr=lr, local_steps=self._steps, momentum=momentum
        )
        facts = found.facts.model_copy(update={"model": self._name, **self._facts})
        return Update(found.gradients, facts, tapes)

    @property
    def _name(self) -> str:
        return type(self._model).__name__

    def _forward(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or self._facts:
            return
        autocast: Autocast | None = autocast_now(self._model)
        modes = {m.training for m in self._model.modules()}
        mode: StepMode = (
            "mixed" if len(modes) == 2 else "train" if True in modes else "eval"
        )
        self._facts = {"mode": mode, "autocast": autocast}
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and value.dim() == 4:
                self._facts["image_shape"] = tuple(value.shape[1:])
                return

    def _pre(self, optimiser: Optimizer, _: Any, __: Any) -> None:
        if not self._ours(optimiser):
            return
        rates = _rates(optimiser, self._ids, self._steps)
        if not self._before:
            _require_fresh(optimiser)
            self._before = {
                n: p.detach().cpu().clone() for n, p in self._shared.items()
            }
            self._rates = rates
        elif rates != self._rates:
            raise _not_plain("one learning rate and momentum throughout", str(rates))

    def _post(self, optimiser: Optimizer, _: Any, __: Any) -> None:
        self._done += self._ours(optimiser)

    def _ours(self, optimiser: Optimizer) -> bool:
        groups = (p for group in optimiser.param_groups for p in group["params"])
        return any(id(p) in self._ids for p in groups)


def _rates(optimiser: Optimizer, ids: set[int], steps: int) -> tuple[float, float]:
    """Learning rate and momentum of plain SGD; anything else is refused by name."""
    name = type(optimiser).__name__
    if name == "AdamW":
        require_one_step(_WHERE, steps)
    if type(optimiser) is not torch.optim.SGD:
        raise _not_plain("torch.optim.SGD", name)
    held = {id(p) for group in optimiser.param_groups for p in group["params"]}
    if not ids <= held:
        raise _not_plain("one optimiser for all trainable parameters", "several")
    for group in optimiser.param_groups:
        for setting, plain in _PLAIN.items():
            if group[setting] != plain:
                raise _not_plain(f"{setting}={plain}", f"{group[setting]}")
    rates = {(float(g["lr"]), float(g["momentum"])) for g in optimiser.param_groups}
    if len(rates) > 1:
        raise _not_plain("one learning rate and momentum", f"{sorted(rates)}")
    return rates.pop()


def _require_fresh(optimiser: Optimizer) -> None:
    moving = any(s.get("momentum_buffer") is not None for s in optimiser.state.values())
    if moving:
        raise _not_plain("momentum that starts at zero", "momentum of earlier steps")


def _not_plain(expected: str, got: str) -> ConfigError:
    return ConfigError(
        _WHERE,
        expected=expected,
        got=got,
        hint="Only what the audit can repeat step by step is recorded as a round; one "
        "single step of anything can be recorded without local_steps.",
    )
