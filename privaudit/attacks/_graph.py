"""A traced iteration: whether it may be run again, and without what it can do."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_ONCE = {
    torch.Tag.nondeterministic_seeded: "draws at random",
    torch.Tag.data_dependent_output: "decides by values",
    torch.Tag.dynamic_output_shape: "has a result whose size depends on values",
}
_RENAMES = {_aten.alias.default, _aten.detach.default, _aten.lift_fresh_copy.default}
"""Copies of a name: nothing is written to, so the original serves as well."""


def refusal(graph: GraphModule) -> str:
    """Why running ``graph`` again would not be what the model does; empty: it is.

    What autograd writes to tensors of its own is first put out of place.

    Args:
        graph: As ``make_fx`` traced it.
    """
    place = {node: number for number, node in enumerate(graph.graph.nodes)}
    for node in place:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            return f"{node.target} is not a plain operator"
        if node.target._schema.is_mutable:
            if _is_idle(node):
                graph.graph.erase_node(node)
            elif not _put_out_of_place(node, place):
                return f"{node.target} writes to what it is given"
        for tag, what in _ONCE.items():
            if tag in node.target.tags and not _by_number(node):
                return f"{node.target} {what}"
    return ""


def _is_idle(node: Node) -> bool:
    """True where nobody reads what is written: a counter of batches."""
    own: Any = node.args[0] if node.args else None
    if node.users or getattr(own, "op", "") != "get_attr":
        return False
    names = [n for n in node.graph.nodes if n.op == "get_attr"]
    same = [n for n in names if n.target == own.target]
    return all(user is node for n in same for user in n.users)


def _by_number(node: Node) -> bool:
    """True for an index of numbers, whose result has one size; masks have others."""
    if node.target is not _aten.index.Tensor:
        return False
    at: Any = node.args[1]
    kinds = [_dtype(n) for n in at if n is not None]
    return all(kind in (torch.int64, torch.int32) for kind in kinds)


def _dtype(node: Node) -> torch.dtype | None:
    """The type of its value, where the trace says so."""
    known = node.meta.get("tensor_meta")
    if node.op == "get_attr":
        known = getattr(node.graph.owning_module, str(node.target))
    return getattr(known, "dtype", None)


def _put_out_of_place(node: Node, place: dict[Node, int]) -> bool:
    """Let ``node`` make a new tensor, where nobody reads the old one any more."""
    own: Any = node.args[0] if node.args else None
    packet, _, overload = str(node.target).removeprefix("aten.").partition(".")
    instead = getattr(getattr(_aten, packet.removesuffix("_"), None), overload, None)
    if instead is None or not packet.endswith("_") or instead._schema.is_mutable:
        return False
    readers = [user for user in own.users if user is not node]
    if _shares(own) or any(_shares(r) or place[r] > place[node] for r in readers):
        return False
    node.target = instead
    return True


def _shares(node: Node) -> bool:
    """True where the result may be, or show, memory of somebody else."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return any(r.alias_info is not None for r in node.target._schema.returns)


def simplify(graph: GraphModule) -> None:
    """Take out of ``graph`` what does not change its result; in place.

    Renamings, added zeros, what depends on no leaf, and what is computed twice. Only
    for graphs without a :func:`refusal`: there no operator writes to a tensor.
    """
    for node in list(graph.graph.nodes):
        same = _same_as(node)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.graph.erase_node(node)
    _fold(graph)
    _merge(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _same_as(node: Node) -> Node | None:
    """The node that has the value of ``node`` already."""
    given: Any = node.args[0] if node.args else None
    if node.target in _RENAMES:
        return given  # type: ignore[no-any-return]
    if node.target is _aten.cat.default and len(given) == 1:
        return given[0]  # type: ignore[no-any-return]
    if node.target is _aten.add.Tensor and _is_zero(node.args[1], like=given):
        return given  # type: ignore[no-any-return]
    return None


def _is_zero(value: Any, *, like: Any) -> bool:
    """True for zeros of the shape and type of ``like``: a probe behind a layer."""
    if getattr(value, "target", None) is not _aten.zeros_like.default:
        return False
    mine, other = value.meta.get("tensor_meta"), like.meta.get("tensor_meta")
    if mine is None or other is None:
        return False
    return (mine.shape, mine.dtype) == (other.shape, other.dtype)


def _fold(graph: GraphModule) -> None:
    """Compute once what no leaf has a part in."""
    known: dict[Node, Any] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            known[node] = getattr(graph, node.target)
        elif node.op == "call_function" and node.all_input_nodes:
            if not all(n in known for n in node.all_input_nodes):
                continue
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
            with torch.no_grad():
                value = node.target(*args, **kwargs)
            if isinstance(value, Tensor):
                known[_put(graph, node, value)] = value


def _put(graph: GraphModule, node: Node, value: Tensor) -> Node:
    """``value`` in the place of ``node``."""
    name = f"folded_{node.name}"
    graph.register_buffer(name, value, persistent=False)
    with graph.graph.inserting_before(node):
        held = graph.graph.get_attr(name)
    node.replace_all_uses_with(held)
    graph.graph.erase_node(node)
    return held


def _merge(graph: GraphModule) -> None:
    """One node for each thing that is computed."""
    first: dict[tuple[Any, ...], Node] = {}
    for node in list(graph.graph.nodes):
        if node.op not in ("call_function", "get_attr"):
            continue
        # As text: 1 and 1.0 are equal, and not the same to an operator.
        key = (node.op, node.target, repr(node.args), repr(node.kwargs))
        same = first.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.graph.erase_node(node)
