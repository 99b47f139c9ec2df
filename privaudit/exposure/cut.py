"""Cuts a model in two at one call of one module, by hooks; nothing is rewritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


class _ReachedError(BaseException):
    """The forward pass has come to the cut: nothing behind it needs to run."""


@dataclass(frozen=True, eq=False)
class Cut:
    """One place of a model.

    Attributes:
        path: Dotted path of the module whose output is sent.
        call: Which of its calls in one forward pass, from 0.
        select: Which element of its output, where that is a tuple or a dict.
    """

    path: str
    call: int = 0
    select: int | str | None = None

    def capture(self, model: nn.Module, forward: Callable[[], Any]) -> Tensor:
        """What is sent, with its graph; the forward pass stops there.

        Args:
            model: The whole model.
            forward: Runs it.
        """
        seen: list[Tensor] = []

        def hook(_: nn.Module, __: Any, out: Any) -> None:
            seen.append(out if self.select is None else out[self.select])
            if len(seen) > self.call:
                raise _ReachedError

        handle = model.get_submodule(self.path).register_forward_hook(hook)
        try:
            forward()
        except _ReachedError:
            pass
        finally:
            handle.remove()
        return seen[self.call]
