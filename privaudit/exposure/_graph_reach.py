"""Where the autograd graph from the input ends, in the user's own names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from privaudit.exposure import _outputs
from privaudit.tape import readable


def last_reached(model: nn.Module, forward: Callable[[], Any], leaf: Tensor) -> str:
    """The last module, in call order, whose output still depends on ``leaf``.

    Only modules without parts are looked at: a whole is no place. Empty where there is
    none.
    """
    names = {id(m): readable(n) for n, m in model.named_modules()}
    found = ""
    known: dict[Any, bool] = {}

    def hook(module: nn.Module, _: Any, out: Any) -> None:
        nonlocal found
        if not names.get(id(module)) or next(module.children(), None) is not None:
            return
        roots = [t.grad_fn for t in _outputs.tensors(out).values()]
        if any(_leads(root, leaf, known) for root in roots):
            found = names[id(module)]

    handle = nn_module.register_module_forward_hook(hook)
    try:
        forward()
    finally:
        handle.remove()
    return found


def _leads(root: Any, leaf: Tensor, known: dict[Any, bool]) -> bool:
    """Whether ``leaf`` lies behind ``root``; ``known`` remembers between calls."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node is None or node in known:
            stack.pop()
            continue
        behind = [n for n, _ in node.next_functions if n is not None]
        waiting = [n for n in behind if n not in known]
        if waiting:
            stack += waiting
            continue
        own = getattr(node, "variable", None) is leaf
        known[node] = own or any(known[n] for n in behind)
        stack.pop()
    return known.get(root, False)
