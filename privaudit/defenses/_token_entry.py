"""Finds where tokens have their positions, and changes them there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from privaudit._guard import kept_world
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.exposure import FeatureExposure

_MOST = 16
"""Modules that are tried, from the input on."""
_TOLERANCE = 1e-3
"""Of the largest value: attention sums in another order."""
Change = Callable[[Tensor], Tensor]


def entry_of(
    model: nn.Module,
    exposure: FeatureExposure,
    run: Callable[[], Any],
    *,
    tokens: int,
    at: str | None,
) -> str:
    """The module whose input are the tokens behind the position embedding.

    From there on a transformer does not know the order of its tokens: the first module
    is taken at which reversed patches come out at the cut reversed, unless tokens have
    seen each other before it.

    Args:
        model: The whole model.
        exposure: Where it is cut.
        run: Runs the model.
        tokens: How many there are, prefix included.
        at: What the user says; it is checked only for taking tokens.

    Raises:
        ConfigError: There is none, or not there.
    """
    with kept_world(), torch.no_grad():
        takers = _takers(model, exposure, run, tokens)
        if at is not None:
            if at in takers:
                return at
            raise _not_there(at, takers, tokens)
        prefix = exposure.layout.prefix_tokens
        sent = exposure.cut.capture(model, run)
        wanted = _reversed(sent, prefix)
        for path in takers[:_MOST]:
            if not _same(_with_reversed(model, exposure, run, path, tokens), wanted):
                continue
            if not _mixed_before(model, exposure, run, (takers[0], path), tokens):
                return path
            break
    raise ConfigError(
        "defense token_drop.at",
        expected="a module before the cut whose input are tokens with their positions",
        got=f"none among {', '.join(takers[:_MOST]) or 'the modules before the cut'}",
        hint='Name it by at=, cut behind it, or use where="output"; positions that '
        "are added inside of each block (rotary ones) leave no such place.",
    )


@contextmanager
def tokens_changed(
    model: nn.Module, path: str, tokens: int, change: Change
) -> Iterator[None]:
    """While it holds, the module at ``path`` gets its input as ``change`` makes it.

    Args:
        model: The whole model.
        path: Of the module.
        tokens: How many there are; inputs of other shapes are left alone.
        change: (batch, tokens, channels) → the same with other tokens.
    """

    def hook(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        for index, value in enumerate(args):
            if _are_tokens(value, tokens):
                return (*args[:index], change(value), *args[index + 1 :]), kwargs
        for key, value in kwargs.items():
            if _are_tokens(value, tokens):
                return args, {**kwargs, key: change(value)}
        return None

    module = model.get_submodule(path)
    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _are_tokens(value: Any, tokens: int) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dim() == 3
        and value.shape[1] == tokens
    )


def _takers(
    model: nn.Module, exposure: FeatureExposure, run: Callable[[], Any], tokens: int
) -> list[str]:
    """Modules before the cut that are given so many tokens, in the order of calls."""
    found: dict[str, None] = {}
    with ExitStack() as stack:
        for path, module in model.named_modules():

            def look(_: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                if any(_are_tokens(v, tokens) for v in (*args, *kwargs.values())):
                    found.setdefault(path)

            handle = module.register_forward_pre_hook(look, with_kwargs=True)
            stack.callback(handle.remove)
        exposure.cut.capture(model, run)
    return list(found)


def _with_reversed(
    model: nn.Module,
    exposure: FeatureExposure,
    run: Callable[[], Any],
    path: str,
    tokens: int,
) -> Tensor:
    """What is sent when patches are reversed at ``path``."""
    prefix = exposure.layout.prefix_tokens
    with tokens_changed(model, path, tokens, lambda x: _reversed(x, prefix)):
        return exposure.cut.capture(model, run)


def _mixed_before(
    model: nn.Module,
    exposure: FeatureExposure,
    run: Callable[[], Any],
    paths: tuple[str, str],
    tokens: int,
) -> bool:
    """Whether one token at the first module shows in other tokens at the last."""
    first, last = paths
    middle = torch.arange(tokens) == tokens // 2
    seen: list[Tensor] = []

    def moved(x: Tensor) -> Tensor:
        return x + (x.abs().mean() + 1) * middle.to(x)[:, None]

    def keep(x: Tensor) -> Tensor:
        seen.append(x[:, ~middle.to(x.device)])
        return x

    with tokens_changed(model, last, tokens, keep):
        exposure.cut.capture(model, run)
    with (
        tokens_changed(model, first, tokens, moved),
        tokens_changed(model, last, tokens, keep),
    ):
        exposure.cut.capture(model, run)
    before, after = seen[0], seen[len(seen) // 2]
    return not _same(after, before)


def _reversed(x: Tensor, prefix: int) -> Tensor:
    return torch.cat([x[:, :prefix], x[:, prefix:].flip(1)], 1)


def _same(found: Tensor, wanted: Tensor) -> bool:
    if found.shape != wanted.shape:
        return False
    gap = float((found - wanted).abs().max())
    return gap <= _TOLERANCE * float(wanted.abs().max())


def _not_there(at: str, takers: list[str], tokens: int) -> ConfigError:
    listed = ", ".join(takers[:6]) or "none"
    return ConfigError(
        "defense token_drop.at",
        expected=f"a module before the cut that is given {tokens} tokens",
        got=repr(at),
        hint=f"Such modules are {listed}.",
    )
