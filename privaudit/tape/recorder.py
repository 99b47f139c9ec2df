"""The stochastic tape: record and replay everything random in a forward pass.

Two levels. Above autograd (``TorchFunctionMode``) masks become values that we own.
Below it (``TorchDispatchMode``, see census.py) every remaining draw is counted and
put back, so that "none found" can be said at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from privaudit.errors import UnsupportedModelError
from privaudit.tape import wrappers
from privaudit.tape.census import Census
from privaudit.tape.draws import Draw, Tape
from privaudit.tape.inplace import Overwritten
from privaudit.tape.owners import Owners

Use = Literal["record", "replay", "off"]
LinearCall = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Tensor]
AnyCall = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
Observer = Callable[[str, Any, tuple[Any, ...], Mapping[str, Any], Any], None]


class Recorder(TorchFunctionMode):
    """Context that records, replays or switches off the randomness of a model.

    Args:
        model: Gives the dotted paths.
        tape: Draws to put back, in call order; None records instead.
        off: True lets every mask keep everything, scale included, and noise be
            zero: the model without its dropout.
        observer: Called with (path, function, args, kwargs, output) for each call
            that is not random.
        linear: Called with (function, args, kwargs) instead of a linear layer.
        calls: Likewise for every call that is not random; it answers
            ``NotImplemented`` where the call should run as it is.
        precise: True takes autocast off every call: the model in its own precision.
    """

    def __init__(
        self,
        model: nn.Module,
        tape: Tape | None = None,
        *,
        off: bool = False,
        observer: Observer | None = None,
        linear: LinearCall | None = None,
        calls: AnyCall | None = None,
        precise: bool = False,
    ) -> None:
        super().__init__()
        self._owners = Owners(model)
        self._census = Census(self)
        self._replay = None if tape is None else list(tape)
        self._off = off
        self._observer = observer
        self._linear = linear
        self._calls_instead = calls
        self._precise = precise
        self._device = device_type(model)
        self._draws: list[Draw] = []
        self._calls: Counter[str] = Counter()
        self._wrappers: list[str] = []
        self._overwritten = Overwritten()
        self.handling = False
        self.autocast: torch.dtype | None = None
        """The type that autocast was last seen to cast to; None: it was off."""

    @property
    def tape(self) -> Tape:
        """What has been drawn, or put back, so far."""
        return Tape(tuple(self._draws))

    def __enter__(self) -> Recorder:
        super().__enter__()  # type: ignore[no-untyped-call]
        if not self._inside:
            self._owners.__enter__()
            self._census.__enter__()  # type: ignore[no-untyped-call]
        self._inside += 1
        return self

    def __exit__(self, *error: Any) -> None:
        self._inside -= 1
        if not self._inside:
            self._census.__exit__(*error)  # type: ignore[no-untyped-call]
            self._owners.__exit__(*error)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    _inside = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.is_autocast_enabled(self._device):
            self.autocast = torch.get_autocast_dtype(self._device)
            if self._precise:
                with torch.autocast(self._device, enabled=False):
                    return self.__torch_function__(func, types, args, kwargs)
        args, kwargs = self._overwritten.arguments(args, dict(kwargs or {}))
        body = wrappers.body_of(func)
        if body is not None:
            changed, args, kwargs = wrappers.out_of_place(func, args, kwargs)
            with self._in_wrapper(func.__name__):
                out = body(*args, **kwargs)
            return out if changed is None else self._overwritten.put(changed, out)
        from privaudit.tape.handlers import HANDLERS, OVERWRITING, Call

        handler = HANDLERS.get(func)
        if handler is not None:
            out = handler(self, Call(func, args, kwargs))
            return self._overwritten.put(args[0], out) if func in OVERWRITING else out
        if self._linear is not None and func is F.linear:
            return self._linear(func, args, kwargs)
        if self._calls_instead is not None:
            out = self._calls_instead(func, args, kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if self._observer is not None:
            self._observer(self._owners.current, func, args, kwargs, out)
        return out

    def latest(self, value: Any) -> Any:
        """``value`` as plain execution leaves it: in-place calls ran out of place."""
        return self._overwritten.latest(value)

    def mask(
        self, kind: str, *, p: float, like: Tensor, shape: tuple[int, ...]
    ) -> Tensor | None:
        """Draw, or put back, a keep-mask; None where every value stays.

        Drawn as torch draws on a CPU, so that a seed gives the same masks with and
        without the tape.
        """
        if p in (0.0, 1.0):
            self._note(kind, None, p=p)
            return torch.zeros_like(like) if p == 1.0 and not self._off else None
        if self._off:
            self._note(kind, like.new_ones(()).expand(shape), p=p)
            return None
        return self._value(kind, lambda: _blank(like, shape).bernoulli_(1 - p), p=p)

    def noise(self, kind: str, draw: Callable[[], Tensor]) -> Tensor:
        """Draw, or put back, a value that is random but drops nothing."""
        return self._value(kind, draw)

    def seen(self, func: Any, x: Tensor, out: Tensor) -> None:
        """Tell the observer where the latest draw sits in the flow of data."""
        if self._observer is not None:
            place = {"draw": len(self._draws) - 1}
            self._observer(self._owners.current, func, (x,), place, out)

    def kind(self, default: str) -> str:
        """The name of a dropout call: the outermost wrapper knows best."""
        if "multi_head_attention_forward" in self._wrappers:
            return "attention-prob dropout"
        return self._wrappers[-1] if self._wrappers else default

    def hidden_kind(self, operator: str) -> str:
        """The name of a draw that only the census saw."""
        return self._wrappers[-1] if self._wrappers else f"noise: {operator}"

    def hidden(
        self, kind: str, draw: Callable[[], Tensor], *, p: float | None
    ) -> Tensor:
        """A draw that no function-level handler accounted for."""
        return self._value(kind, draw, p=p, hidden=True)

    def unreplayable(self, kind: str) -> None:
        """Note a draw that cannot be put back."""
        if self._replay:
            self._replay.pop(0)
        self._append(kind, None, p=None, hidden=True, replayable=False)

    @property
    def switched_off(self) -> bool:
        """True when nothing random may happen."""
        return self._off

    @contextmanager
    def accounted(self) -> Iterator[None]:
        """While a handler draws, the census stays silent."""
        before, self.handling = self.handling, True
        try:
            yield
        finally:
            self.handling = before

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Name draws after the function that makes them."""
        self._wrappers.append(name)
        try:
            yield
        finally:
            self._wrappers.pop()

    @contextmanager
    def _in_wrapper(self, name: str) -> Iterator[None]:
        # Inside its own handler a mode is off; entering it again lets the calls of
        # the wrapper's body be seen.
        with self.inside(name), self:
            yield

    def _value(
        self,
        kind: str,
        draw: Callable[[], Tensor],
        *,
        p: float | None = None,
        hidden: bool = False,
    ) -> Tensor:
        if self._replay is None:
            with self.accounted(), torch.no_grad():
                value = draw()
            self._append(kind, value.detach().clone(), p=p, hidden=hidden)
            return value
        kept = self._next(kind)
        self._draws.append(kept)
        if kept.value is None:
            raise self._mismatch(kind, "a recorded value", f"none for {kept.name}")
        return kept.value

    def _note(self, kind: str, value: Tensor | None, *, p: float | None) -> None:
        """A call that draws nothing keeps its place in the order."""
        if self._replay is not None:
            self._draws.append(self._next(kind))
        else:
            self._append(kind, value, p=p)

    def _append(
        self,
        kind: str,
        value: Tensor | None,
        *,
        p: float | None,
        hidden: bool = False,
        replayable: bool = True,
    ) -> None:
        path = self._owners.current
        call = self._calls[path]
        self._calls[path] += 1
        self._draws.append(Draw(path, call, kind, value, p, hidden, replayable))

    def _next(self, kind: str) -> Draw:
        if not self._replay:
            raise self._mismatch(kind, "no further draw", f"{kind!r}")
        kept = self._replay.pop(0)
        if kept.kind != kind:
            raise self._mismatch(kind, f"{kept.kind!r} ({kept.name})", f"{kind!r}")
        return kept

    def _mismatch(self, kind: str, expected: str, got: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            self._owners.current,
            expected=f"{expected} as in the recorded step",
            got=got,
            hint="The forward pass takes another way when it is run again, so its "
            f"randomness ({kind}) cannot be replayed.",
        )


def device_type(model: nn.Module) -> str:
    """Where the model is: autocast is switched per type of device."""
    first = next(model.parameters(), None)
    return "cpu" if first is None else first.device.type


def _blank(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor with the strides that torch itself would draw into."""
    if shape == tuple(like.shape):
        return torch.empty_like(like)
    return torch.empty(shape, dtype=like.dtype, device=like.device)
