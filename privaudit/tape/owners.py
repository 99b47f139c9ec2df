"""Which module is running: dotted paths without touching the user's modules."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as nn_module


class Owners:
    """Context in which :attr:`current` names the module whose forward is running.

    Uses the global module hooks, so that nothing is added to the user's model.
    """

    def __init__(self, model: nn.Module) -> None:
        root = type(model).__name__
        self._names = {
            id(m): readable(name) or root for name, m in model.named_modules()
        }
        self._stack = [root]
        self._handles: list[Any] = []

    @property
    def current(self) -> str:
        """Dotted path of the innermost running module of the model."""
        return self._stack[-1]

    def __enter__(self) -> Owners:
        self._stack = self._stack[:1]
        self._handles = [
            nn_module.register_module_forward_pre_hook(self._push),
            nn_module.register_module_forward_hook(self._pop, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _push(self, module: nn.Module, _: Any) -> None:
        name = self._names.get(id(module))
        if name is not None:
            self._stack.append(name)

    def _pop(self, module: nn.Module, _: Any, __: Any) -> None:
        if id(module) in self._names and len(self._stack) > 1:
            self._stack.pop()


def readable(name: str) -> str:
    """A parameter or module name as the user knows it, wrappers left out."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
