"""pristine(model): whatever happens inside, the user's model comes back as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def pristine(model: nn.Module) -> Iterator[None]:
    """Restore ``model`` and the global state bit for bit on the way out.

    Covers parameters, buffers and tensors kept as plain attributes, modes per
    module, ``requires_grad``, ``.grad``, hooks and their order, every plain
    attribute, random states (torch, CUDA, numpy, Python) and backend flags. Holds
    on success, on error and on Ctrl-C.
    """
    modules = [_ModuleState.take(m) for m in model.modules()]
    world = _take_world()
    try:
        yield
    finally:
        for state in modules:
            state.restore()
        for put_back in world:
            put_back()


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Let a forward pass change copies of the buffers (batch statistics, ...).

    The copies stay with the graph that was built on them, so that a second
    derivative taken later still finds the values that the forward pass used.
    """
    before = [(m, dict(m._buffers)) for m in model.modules() if _swappable(m)]
    copies: dict[int, Tensor | None] = {id(None): None}
    try:
        for module, buffers in before:
            for name, buffer in buffers.items():
                if id(buffer) not in copies:
                    copies[id(buffer)] = _copied(buffer)
                module._buffers[name] = copies[id(buffer)]
        yield
    finally:
        for module, buffers in before:
            module._buffers.clear()
            module._buffers.update(buffers)


def _swappable(module: nn.Module) -> bool:
    return bool(module._buffers) and not isinstance(module, torch.jit.ScriptModule)


def _copied(buffer: Tensor | None) -> Tensor | None:
    if buffer is None or not _restorable(buffer):
        return buffer
    return buffer.detach().clone()


@dataclass
class _TensorState:
    tensor: Tensor
    kept: Tensor
    requires_grad: bool
    grad: Tensor | None
    kept_grad: Tensor | None

    @classmethod
    def take(cls, tensor: Tensor) -> _TensorState:
        grad = tensor.grad if tensor.is_leaf else None
        return cls(
            tensor,
            tensor.detach().clone(),
            tensor.requires_grad,
            grad,
            None if grad is None else grad.detach().clone(),
        )

    def restore(self) -> None:
        if self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)
        _put_back(self.tensor, self.kept)
        if self.tensor.is_leaf:
            self.tensor.grad = self.grad
        if self.grad is not None and self.kept_grad is not None:
            _put_back(self.grad, self.kept_grad)


@dataclass
class _ModuleState:
    module: nn.Module
    attributes: dict[str, Any]
    containers: dict[str, Any]
    tensors: list[_TensorState]

    @classmethod
    def take(cls, module: nn.Module) -> _ModuleState:
        attributes = dict(vars(module))
        containers = {
            name: value.copy()
            for name, value in attributes.items()
            if isinstance(value, (dict, list, set))
        }
        held = [*module._parameters.values(), *module._buffers.values()]
        held += [v for v in attributes.values() if isinstance(v, Tensor)]
        tensors = [
            _TensorState.take(t) for t in held if t is not None and _restorable(t)
        ]
        return cls(module, attributes, containers, tensors)

    def restore(self) -> None:
        current = vars(self.module)
        for name in [n for n in current if n not in self.attributes]:
            del current[name]
        current.update(self.attributes)
        for name, kept in self.containers.items():
            _refill(self.attributes[name], kept)
        for state in self.tensors:
            state.restore()


def _restorable(tensor: Tensor) -> bool:
    return not nn.parameter.is_lazy(tensor) and tensor.device.type != "meta"


def _refill(container: Any, kept: Any) -> None:
    """Put a dict, list or set back in place, the order of its entries included."""
    if isinstance(container, list):
        container[:] = kept
        return
    same = list(container) == list(kept)
    if same and isinstance(container, dict):
        same = all(container[k] is kept[k] for k in kept)
    if not same:
        container.clear()
        container.update(kept)


def _put_back(tensor: Tensor, kept: Tensor) -> None:
    """Copy only on a difference, so that untouched tensors keep their version."""
    if tensor.shape != kept.shape or tensor.dtype != kept.dtype:
        tensor.data = kept
    elif not _same_bits(tensor, kept):
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.copy_(kept)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    a = a.detach()
    if a.layout is not torch.strided or a.is_quantized:
        return False
    if a.is_floating_point():
        # NaN differs from itself; compare its places and fill them with zero.
        holes = a.isnan()
        if not torch.equal(holes, b.isnan()):
            return False
        a, b = a.masked_fill(holes, 0), b.masked_fill(holes, 0)
        return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())
    return torch.equal(a, b)


def _take_world() -> list[Callable[[], object]]:
    """Closures that put random states and backend flags back."""
    torch_state = torch.get_rng_state()
    python_state = random.getstate()
    undo: list[Callable[[], object]] = [
        lambda: torch.set_rng_state(torch_state),
        lambda: random.setstate(python_state),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        cuda = torch.cuda.get_rng_state_all()
        undo.append(lambda: torch.cuda.set_rng_state_all(cuda))
    if "numpy" in sys.modules:
        import numpy as np

        numpy_state = np.random.get_state()
        undo.append(lambda: np.random.set_state(numpy_state))
    for owner, name in _FLAGS:
        undo.append(_flag(owner, name))
    grad = torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    precision = torch.get_float32_matmul_precision()
    fastpath = torch.backends.mha.get_fastpath_enabled()
    dtype = torch.get_default_dtype()
    undo += [
        lambda: torch.set_grad_enabled(grad),
        lambda: torch.use_deterministic_algorithms(deterministic, warn_only=warn_only),
        lambda: torch.set_float32_matmul_precision(precision),
        lambda: torch.backends.mha.set_fastpath_enabled(fastpath),
        lambda: torch.set_default_dtype(dtype),
    ]
    return undo


_FLAGS: list[tuple[Any, str]] = [
    (torch.backends.cudnn, "enabled"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_tf32"),
]


def _flag(owner: Any, name: str) -> Callable[[], object]:
    value = getattr(owner, name)

    def put_back() -> None:
        if getattr(owner, name) != value:
            setattr(owner, name, value)

    return put_back
