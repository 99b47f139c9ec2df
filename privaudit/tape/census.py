"""Below autograd: every random operator, so that nothing random goes uncounted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from privaudit.tape.recorder import Recorder

_aten = torch.ops.aten
# Random operators whose result does not depend on what they are given, so that
# putting the recorded result back is exact; and draws from a distribution, where it
# is exact for the parameters that it was drawn with.
_PURE = {
    "bernoulli_", "normal_", "uniform_", "exponential_", "geometric_", "cauchy_",
    "log_normal_", "random_", "rand", "randn", "rand_like", "randn_like", "randint",
    "randint_like", "randperm", "normal", "poisson", "binomial", "multinomial",
    "bernoulli", "_standard_gamma", "_sample_dirichlet",
}  # fmt: skip


class Census(TorchDispatchMode):
    """Counts the random operators that no handler of the recorder accounted for."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        random = torch.Tag.nondeterministic_seeded in func.tags
        if not random or self._recorder.handling or _draws_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        kind = self._recorder.hidden_kind(name)
        if name not in _PURE:
            self._recorder.unreplayable(kind)
            return func(*args, **kwargs)
        p = _dropped(name, args)
        value = self._draw(func, args, kwargs, kind=kind, p=p)
        if not self._recorder.switched_off:
            return value
        if p is not None:
            return value.fill_(1 - p)
        return value.fill_(0.5) if name in ("rand", "rand_like") else value

    def _draw(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        kind: str,
        p: float | None,
    ) -> Any:
        draw: Callable[[], Tensor] = lambda: func(*args, **kwargs)  # noqa: E731
        value = self._recorder.hidden(kind, draw, p=p)
        if func.overloadpacket.__name__.endswith("_"):
            return args[0] if value is args[0] else args[0].copy_(value)
        return value.clone()


def _dropped(name: str, args: tuple[Any, ...]) -> float | None:
    """The drop probability of a Bernoulli draw."""
    if name != "bernoulli_":
        return None
    keep = args[1] if len(args) > 1 else 0.5  # a default is left out of the call
    return round(1 - keep, 12) if isinstance(keep, float) else None


def _draws_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Operators that are random only when told so (attention with dropout 0)."""
    if not args and not kwargs:
        return False
    names = [a.name for a in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    for name in ("dropout_p", "dropout", "p"):
        if name in given and not isinstance(given[name], Tensor) and given[name] == 0:
            return bool(func.overloadpacket.__name__ != "bernoulli_")
    if func.overloadpacket.__name__ == "native_dropout":
        return not given.get("train", True)
    for argument in func._schema.arguments:
        if argument.name == "dropout_p" and argument.name not in given:
            return bool(argument.default_value == 0)
    return False
