"""Cuts a model in two at one call of one module, by hooks; nothing is rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._guard import kept_buffers
from privaudit.errors import ConfigError
from privaudit.exposure import _outputs
from privaudit.exposure.conditions import keep_activations

Forward = Callable[[], Any]
"""Runs the whole model on some input."""


class _ReachedError(Exception):
    """The forward pass has come to the cut: nothing behind it needs to run.

    An ``Exception``, so that hooks with ``always_call`` of the user's run as well.
    """


@dataclass(frozen=True, eq=False)
class Cut:
    """One place of a model.

    Attributes:
        path: Dotted path of the module whose output is sent.
        call: Which of its calls in one forward pass, from 0.
        select: Which element of its output, where that is a tuple, dict or dataclass;
            None: the first tensor of floats.
        chosen: The same in words, where there was a choice.
        batch_axis: 1 where time comes first, as in torch's attention by default.
        calls: How often the module is called; 0: not counted.
    """

    path: str
    call: int = 0
    select: int | str | None = None
    chosen: str = ""
    batch_axis: int = 0
    calls: int = 0

    @property
    def name(self) -> str:
        """As users write it: ``blocks.6``, or ``l#1`` where there are more calls."""
        return f"{self.path}#{self.call}" if self.calls > 1 else self.path

    def capture(self, model: nn.Module, forward: Forward) -> Tensor:
        """What is sent, (batch, …) with its graph; the forward pass stops there.

        Args:
            model: The whole model.
            forward: Runs it.

        Raises:
            ConfigError: The module was not called, or puts out no floats.
        """
        seen: list[Any] = []

        def hook(_: nn.Module, __: Any, out: Any) -> None:
            seen.append(out if len(seen) == self.call else None)
            if len(seen) > self.call:
                raise _ReachedError

        with cut_conditions(model), _hooked(model, self.path, hook):
            with suppress(_ReachedError):
                forward()
            if len(seen) <= self.call:
                raise self.not_reached(len(seen))
            # A copy: a forward pass that swallows the stop goes on, maybe in place.
            sent = _outputs.chosen(seen[self.call], self.select, self.name)
            return sent.movedim(self.batch_axis, 0).clone()

    def finish(self, model: nn.Module, forward: Forward, features: Tensor) -> Any:
        """The model's output when ``features`` stand where the cut is.

        Args:
            model: The whole model.
            forward: Runs it, on an input of the same shape; its values reach the
                output only where something passes beside the cut.
            features: (batch, …) as :meth:`capture` gives them; not changed.

        Raises:
            ConfigError: The module was not called, or puts out no floats.
        """
        count = 0

        def hook(_: nn.Module, __: Any, out: Any) -> Any:
            nonlocal count
            count += 1
            if count != self.call + 1:
                return None
            key = self.select
            if key is None:
                key = _outputs.main_key(out, self.name)
            given = features.clone().movedim(0, self.batch_axis)
            return _outputs.replaced(out, key, given)

        with cut_conditions(model), _hooked(model, self.path, hook):
            out = forward()
        if count <= self.call:
            raise self.not_reached(count)
        return out

    def not_reached(self, count: int) -> ConfigError:
        """What to say when a forward pass did not come to the cut."""
        return ConfigError(
            f"split {self.name}",
            expected=f"call {self.call} of {self.path}",
            got=f"{count} call(s) in this forward pass"
            if count
            else f"`{self.path}` was not executed for this input",
            hint="Which parts run may depend on the input or on the mode: cut at a "
            "module that always runs.",
        )


class Pair(nn.Module):
    """Client and server as one model: ``server(client(x))``.

    What the client puts out is handed to the server as it is, as one argument. It is
    cut at ``client``.
    """

    def __init__(self, client: nn.Module, server: nn.Module) -> None:
        super().__init__()
        self.client, self.server = client, server
        self.training = client.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the server."""
        return self.server(self.client(*args, **kwargs))


@contextmanager
def cut_conditions(model: nn.Module) -> Iterator[None]:
    """What holds while a cut model runs, and ends with it.

    The transformer fast path skips submodules, inference mode and checkpoints lose
    the graph, and batch statistics would move: none of it happens in here.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        if torch.is_inference_mode_enabled():
            # Leaving inference mode turns gradients on, which nobody asked for here.
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        stack.enter_context(keep_activations())
        if any(m.training and m._buffers for m in model.modules()):
            stack.enter_context(kept_buffers(model))
        yield


@contextmanager
def _hooked(model: nn.Module, path: str, hook: Callable[..., Any]) -> Iterator[None]:
    handle = model.get_submodule(path).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
