"""How the autograd graph leads from the output to the input, and where it ends."""

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


def bypassed(outputs: Any, leaf: Tensor) -> set[Any]:
    """The nodes of the graph that some way from ``outputs`` to ``leaf`` passes by.

    A tensor whose ``grad_fn`` is among them does not carry all that the outputs take
    from the leaf. Of nodes that no output leads to nothing is said.

    Args:
        outputs: Whatever a model put out.
        leaf: What it was given, with ``requires_grad``.
    """
    roots = [t.grad_fn for t in _outputs.tensors(outputs).values()]
    roots = [root for root in roots if root is not None]
    order = _in_order(roots)
    behind: dict[Any, int] = {}  # ways from a node to the leaf
    for node in order:
        own = int(getattr(node, "variable", None) is leaf)
        behind[node] = own + sum(behind[n] for n in _next(node))
    total = sum(behind[root] for root in roots)
    before = dict.fromkeys(order, 0)  # ways from the outputs to a node
    for root in roots:
        before[root] += 1
    for node in reversed(order):
        for n in _next(node):
            before[n] += before[node]
    return {node for node in order if before[node] * behind[node] != total}


def _next(node: Any) -> list[Any]:
    return [n for n, _ in node.next_functions if n is not None]


def _in_order(roots: list[Any]) -> list[Any]:
    """All nodes behind ``roots``, each after those that lie behind it."""
    order: dict[Any, None] = {}
    stack = list(roots)
    while stack:
        waiting = [n for n in _next(stack[-1]) if n not in order]
        if waiting and stack[-1] not in order:
            stack += waiting
        else:
            order.setdefault(stack.pop())
    return list(order)


def _leads(root: Any, leaf: Tensor, known: dict[Any, bool]) -> bool:
    """Whether ``leaf`` lies behind ``root``; ``known`` remembers between calls."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node is None or node in known:
            stack.pop()
            continue
        behind = _next(node)
        waiting = [n for n in behind if n not in known]
        if waiting:
            stack += waiting
            continue
        own = getattr(node, "variable", None) is leaf
        known[node] = own or any(known[n] for n in behind)
        stack.pop()
    return known.get(root, False)
