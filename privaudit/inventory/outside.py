"""Randomness that torch does not know of: Python's and numpy's generators."""

from __future__ import annotations

import random
import sys
from typing import Any

from torch import nn
from torch.nn.modules import module as nn_module

from privaudit.tape import readable


class OutsideWatch:
    """Context that notices which module advanced a generator outside torch."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {
            id(m): readable(n) or type(model).__name__ for n, m in model.named_modules()
        }
        self._stack: list[tuple[Any, int]] = []
        self._handles: list[Any] = []
        self.found: list[str] = []

    def __enter__(self) -> OutsideWatch:
        self._handles = [
            nn_module.register_module_forward_pre_hook(self._before),
            nn_module.register_module_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, _: Any) -> None:
        if id(module) in self._names:
            self._stack.append((_states(), len(self.found)))

    def _after(self, module: nn.Module, _: Any, __: Any) -> None:
        if id(module) not in self._names or not self._stack:
            return
        before, found = self._stack.pop()
        # A part that was caught in between explains the change of its parent.
        if before != _states() and len(self.found) == found:
            self.found.append(self._names[id(module)])


def _states() -> Any:
    states: list[Any] = [random.getstate()]
    if "numpy" in sys.modules:
        import numpy as np

        state = np.random.get_state(legacy=False)
        states.append(repr({**state, "state": None}))
        states += [repr(v) if np.isscalar(v) else v.tobytes() for v in _inner(state)]
    return states


def _inner(state: Any) -> list[Any]:
    return list(state["state"].values())
