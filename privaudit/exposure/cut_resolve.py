"""From the name that a user wrote to the place where the model is cut."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from privaudit._guard import kept_world
from privaudit.adapters import require_images
from privaudit.config import Split
from privaudit.errors import ConfigError, PrivauditError
from privaudit.exposure import _outputs
from privaudit.exposure.cut import Cut, Forward, Pair, cut_conditions
from privaudit.exposure.cut_nodes import NodeCut, find_node, traced_nodes
from privaudit.exposure.diagnose import innermost_module
from privaudit.tape import readable

AnyCut = Cut | NodeCut
C = TypeVar("C", Cut, NodeCut)


def resolve(model: nn.Module, split: Split | str, forward: Forward) -> AnyCut:
    """Find the place that ``split`` names, by one forward pass.

    Args:
        model: The whole model.
        split: ``blocks.6``, ``l#1`` for the second call, or a node of the traced graph
            for torchvision and timm. A :class:`Pair` is cut at ``client``.
        forward: Runs the model on a sample.

    Raises:
        ConfigError: A whole CLIP; no such name; called several times or not at all;
            nothing to send there; the model does not take the sample.
    """
    require_images(model)
    split = Split(split) if isinstance(split, str) else split
    path, call = _parsed(model, split.name)
    if path is None:
        return _node(model, split, forward)
    calls = calls_of(model, forward, keep=path)
    count = calls.counts.get(path, 0)
    _check_count(path, call, count, calls.counts)
    call = call or 0
    cut = _settled(Cut(path, call, split.select, calls=count), calls.outputs[call])
    sent = _outputs.chosen(calls.outputs[call], cut.select, cut.name)
    return replace(cut, batch_axis=batch_axis(sent, calls.batch))


@dataclass(frozen=True)
class Calls:
    """What one forward pass did.

    Attributes:
        counts: How often each module was called.
        outputs: All that one of them put out.
        batch: How many images the model was given; None: not seen.
    """

    counts: Mapping[str, int]
    outputs: list[Any]
    batch: int | None = None


def batch_axis(sent: Tensor, batch: int | None) -> int:
    """1 where the second axis is the batch and the first one cannot be; else 0."""
    shape = sent.shape
    if batch is None or len(shape) < 3 or shape[0] == batch:
        return 0
    return int(shape[1] == batch)


def calls_of(model: nn.Module, forward: Forward, *, keep: str = "") -> Calls:
    """Count the calls of all modules, and keep the outputs of the one called ``keep``.

    Raises:
        ConfigError: The model does not take this input.
    """
    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    counts: dict[str, int] = {}
    outputs: list[Any] = []

    def hook(module: nn.Module, _: Any, out: Any) -> None:
        for name in names.get(id(module), []):
            counts[name] = counts.get(name, 0) + 1
            if name == keep:
                outputs.append(out)

    sizes: list[int] = []

    def size(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = _outputs.tensors([args, kwargs]).values()
        sizes.extend(len(t) for t in given if t.dim())

    with ExitStack() as stack:
        handle = nn_module.register_module_forward_hook(hook)
        stack.callback(handle.remove)
        handle = model.register_forward_pre_hook(size, with_kwargs=True)
        stack.callback(handle.remove)
        run_once(model, forward)
    return Calls(counts, outputs, sizes[0] if sizes else None)


def run_once(model: nn.Module, forward: Forward) -> Any:
    """One forward pass without a graph; random states are put back.

    Raises:
        ConfigError: The model does not take this input.
    """
    with kept_world(), torch.no_grad(), cut_conditions(model):
        try:
            return forward()
        except PrivauditError:
            raise
        except Exception as error:
            text = str(error).strip().split("\n")[0].rstrip(".")
            raise ConfigError(
                innermost_module(error, model),
                expected="images that the model takes",
                got=text or type(error).__name__,
                hint="Give the images the size and the channels that the model was "
                "made for; if they are right, mend the named module.",
            ) from error


def require_float(inputs: Tensor, where: str = "sample") -> None:
    """Refuse images of integers, which no gradient can reach.

    Raises:
        ConfigError: They are not floating point.
    """
    if not inputs.is_floating_point():
        raise ConfigError(
            where,
            expected="images of floats in [0, 1]",
            got=_outputs.described(inputs),
            hint="Convert them: images.float() / 255 for uint8.",
        )


def _parsed(model: nn.Module, name: str) -> tuple[str | None, int | None]:
    """(path, call) of a module; a path of None where no module has that name."""
    if isinstance(model, Pair) and name in ("client", ""):
        return "client", 0
    known = {n: n for n, _ in model.named_modules(remove_duplicate=False) if n}
    known.update({readable(n): n for n in known if readable(n)})
    if name in known:
        return known[name], None
    found = re.fullmatch(r"(.+)#(\d+)", name)
    if found and found[1] in known:
        return known[found[1]], int(found[2])
    return None, None


def _check_count(
    path: str, call: int | None, count: int, counts: Mapping[str, int]
) -> None:
    if count == 0:
        raise _not_run(path, counts)
    listed = " or ".join(f"`{path}#{i}`" for i in range(min(count, 6)))
    if call is None and count > 1:
        raise ConfigError(
            f"split {path}",
            expected="one call in a forward pass",
            got=f"`{path}` is called {count} times in forward",
            hint=f"Choose {listed}{' or …' if count > 6 else ''}, counted in call "
            "order.",
        )
    if call is not None and call >= count:
        raise ConfigError(
            f"split {path}#{call}",
            expected=f"one of the {count} call(s) of `{path}`",
            got=f"call {call}",
            hint=f"Choose {listed}: the first call is 0.",
        )


def _not_run(path: str, counts: Mapping[str, int]) -> ConfigError:
    """Skipped in this pass, or by-passed: some code calls weights, not modules."""
    outer = path
    while outer and not counts.get(outer):
        outer = outer.rpartition(".")[0]
    inside = f"; `{outer}` around it was" if outer else ""
    return ConfigError(
        f"split {path}",
        expected="a module that is called in forward",
        got=f"`{path}` was not executed for this input{inside}",
        hint="It is on a branch that was not taken, or its weights are used without "
        "calling it." + (f" Choose `{outer}`." if outer else ""),
    )


def _node(model: nn.Module, split: Split, forward: Forward) -> NodeCut:
    found = find_node(model, split.name)
    if found is None:
        raise _unknown(model, split.name)
    found = replace(found, select=split.select)
    values: list[Any] = []
    run_once(model, lambda: values.append(found.value(model, forward)))
    return _settled(found, values[0])


def _unknown(model: nn.Module, name: str) -> ConfigError:
    names = [readable(n) for n, _ in model.named_modules() if n]
    nodes = list(traced_nodes(model)[1].values())
    known = list(dict.fromkeys([*names, *nodes]))
    wanted = name.partition("#")[0]
    near = difflib.get_close_matches(wanted, known, n=4, cutoff=0.5)
    listed = near or known[:8]
    return ConfigError(
        "split",
        expected="the name of a part of the model",
        got=repr(name),
        hint=("The nearest names are " if near else "Its parts begin with ")
        + ", ".join(listed)
        + ". split_candidates() lists all places to cut.",
    )


def _settled(cut: C, out: Any) -> C:
    """Say which element is sent, and refuse a place where there is none."""
    key = cut.select
    if key is None:
        key = _outputs.main_key(out, cut.name)
    _outputs.chosen(out, key, cut.name)
    return replace(cut, select=key, chosen=_outputs.in_words(out, key, cut.name))
