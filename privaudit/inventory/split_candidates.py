"""Where a model can be cut: every call of every module, with what it would cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import module as nn_module
from torch.utils.flop_counter import FlopCounterMode

from privaudit._guard import kept_world
from privaudit.config import Split
from privaudit.errors import ConfigError
from privaudit.exposure import _outputs
from privaudit.exposure._graph_reach import bypassed
from privaudit.exposure.cut import Cut, cut_conditions
from privaudit.exposure.cut_check import (
    Run,
    is_complete,
    require_batch_first,
)
from privaudit.exposure.cut_resolve import batch_axis, calls_of, require_float, run_once
from privaudit.inventory._layout_probe import probe_images
from privaudit.inventory.layout import layout_of
from privaudit.inventory.records import SplitCandidate
from privaudit.tape import readable


def split_candidates(
    model: nn.Module,
    run: Run,
    inputs: Tensor,
    *,
    names: Iterable[str] | None = None,
    verify: bool = True,
) -> list[SplitCandidate]:
    """List the places where ``model`` can be cut, in call order.

    Modules that give one and the same tensor are one place, called by the outermost of
    the first; the others are its aliases. Places from which nothing can be sent
    (integers, windows instead of images) are listed with a note.

    Args:
        model: The whole model; it stays as it is.
        run: Calls it.
        inputs: (batch, channels, height, width) floats as ``run`` takes them; the
            first image is used.
        names: Only these, as ``SplitCandidate.name`` has them; None: all.
        verify: Find out whether everything goes through, by one more forward pass for
            each place that every way of the graph passes.

    Raises:
        ConfigError: Integers, or images that the model does not take.
    """
    require_float(inputs)
    wanted = None if names is None else set(names)
    with kept_world():
        walk = _Walk(model, run, inputs[0])
        found = [
            c
            for c in walk.candidates()
            if wanted is None or wanted & {c.name, *c.aliases}
        ]
        if verify:
            found = list(_verified(model, run, inputs[:1], walk.bypassed(found)))
    return found


class _Walk:
    """Forward passes in which every call of every module is looked at."""

    def __init__(self, model: nn.Module, run: Run, image: Tensor) -> None:
        self._model, self._run = model, run
        self._size = (image.shape[1], image.shape[2])
        self._shown = probe_images(image)
        self._names = {id(m): n for n, m in model.named_modules() if n}
        self._counts = calls_of(model, lambda: run(self._shown[:1].clone())).counts
        self._flops = self._client_flops()

    def candidates(self) -> list[SplitCandidate]:
        """One for each value; of the calls that put it out, the outermost."""
        found: dict[tuple[int, int], SplitCandidate] = {}
        alive: list[Any] = []  # so that no two outputs get one id

        def look(name: str, call: int, out: Any) -> None:
            alive.append(out)
            value = _identity(out)
            known = found.get(value)
            if known is None:
                found[value] = self._candidate(name, call, out)
            else:
                found[value] = self._joined(known, name, call)

        with self._hooked(look):
            run_once(self._model, lambda: self._run(self._shown.clone()))
        return list(found.values())

    def bypassed(self, found: list[SplitCandidate]) -> list[SplitCandidate]:
        """Mark the places that a way from the image to the output does not pass."""
        nodes: dict[str, Any] = {}

        def look(path: str, call: int, out: Any) -> None:
            with suppress(ConfigError):
                nodes[self._name(path, call)] = _outputs.chosen(out, None, "").grad_fn

        leaf = self._shown[:1].clone().requires_grad_(True)
        with torch.enable_grad(), cut_conditions(self._model), self._hooked(look):
            beside = bypassed(self._run(leaf.clone()), leaf)
        return [
            c.model_copy(update={"complete": False})
            if nodes.get(c.name) in beside
            else c
            for c in found
        ]

    def _joined(self, known: SplitCandidate, path: str, call: int) -> SplitCandidate:
        """One place more of a value: a whole takes the name of its part."""
        name = self._name(path, call)
        names = [known.name, *known.aliases]
        if not known.name.startswith(f"{readable(path)}."):
            return known.model_copy(update={"aliases": [*known.aliases, name]})
        kind = type(self._model.get_submodule(path)).__name__
        return known.model_copy(update={"name": name, "kind": kind, "aliases": names})

    def _candidate(self, path: str, call: int, out: Any) -> SplitCandidate:
        name = self._name(path, call)
        kind = type(self._model.get_submodule(path)).__name__
        base = SplitCandidate(
            name=name, kind=kind, client_flops=self._flops.get((path, call))
        )
        try:
            key = _outputs.main_key(out, name)
            sent = _outputs.chosen(out, key, name)
            sent = sent.movedim(batch_axis(sent, len(self._shown)), 0)
            require_batch_first(name, sent, len(self._shown))
        except ConfigError as error:
            return base.model_copy(update={"note": _note(error)})
        row = sent[:1]
        base = base.model_copy(
            update={
                "shape": list(row.shape[1:]),
                "bytes_per_image": row.numel() * row.element_size(),
                "chosen": _outputs.in_words(out, key, name),
            }
        )
        return base.model_copy(update=self._layout(path, name, sent))

    def _layout(self, path: str, name: str, sent: Tensor) -> dict[str, Any]:
        try:
            layout = layout_of(
                self._model, Split(name), sent, size=self._size, path=path
            )
        except ConfigError as error:
            return {"note": _note(error)}
        return {
            "layout": layout.kind,
            "prefix_tokens": layout.prefix_tokens,
            "grid": layout.grid,
            "layout_source": layout.source,
        }

    def _client_flops(self) -> dict[tuple[str, int], int]:
        """Operations until a call has ended, of one image."""
        found: dict[tuple[str, int], int] = {}
        counter = FlopCounterMode(display=False)

        def look(name: str, call: int, _: Any) -> None:
            found[name, call] = int(counter.get_total_flops())

        # Fused attention is not counted on every device; its parts are.
        with sdpa_kernel(SDPBackend.MATH), self._hooked(look), counter:
            run_once(self._model, lambda: self._run(self._shown[:1].clone()))
        return found

    def _name(self, path: str, call: int) -> str:
        own = readable(path)
        return f"{own}#{call}" if self._counts.get(path, 1) > 1 else own

    @contextmanager
    def _hooked(self, look: Any) -> Iterator[None]:
        calls: dict[str, int] = {}

        def hook(module: nn.Module, _: Any, out: Any) -> None:
            path = self._names.get(id(module))
            if path is not None:
                call = calls.get(path, 0)
                calls[path] = call + 1
                look(path, call, out)

        handle = nn_module.register_module_forward_hook(hook)
        with ExitStack() as stack:
            stack.callback(handle.remove)
            yield


def _identity(out: Any) -> tuple[int, int]:
    """Which tensor is sent, and how often it was changed in place until now."""
    try:
        sent = _outputs.chosen(out, None, "")
    except ConfigError:
        return id(out), 0
    return id(sent), sent._version


def _verified(
    model: nn.Module, run: Run, image: Tensor, found: list[SplitCandidate]
) -> Iterator[SplitCandidate]:
    """Each with whether everything goes through it."""
    whole = run_once(model, lambda: run(image.clone()))
    paths = {readable(n): n for n, _ in model.named_modules() if n}
    for candidate in found:
        if not candidate.shape:
            yield candidate
            continue
        own, _, call = candidate.name.partition("#")
        cut = Cut(paths[own], int(call or 0))
        complete = candidate.complete is None and is_complete(
            model, cut, run, image, whole
        )
        note = "" if complete else "values pass beside this place"
        note = "; ".join(filter(None, [candidate.note, note]))
        yield candidate.model_copy(update={"complete": complete, "note": note})


def _note(error: ConfigError) -> str:
    return f"expected {error.expected}, got {error.got}"
