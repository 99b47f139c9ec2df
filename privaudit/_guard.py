"""pristine(model): whatever happens inside, the user's model comes back as it was."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
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
    held = _Held()
    for module in model.modules():
        held.keep(module)
    world = _take_world()
    try:
        yield
    finally:
        _do_all([*held.undo, *world])


@contextmanager
def kept_world() -> Iterator[None]:
    """Put random states and backend flags back on the way out; models are not seen."""
    world = _take_world()
    try:
        yield
    finally:
        _do_all(world)


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Let a forward pass change copies of the buffers (batch statistics, ...).

    The copies stay with the graph that was built on them, so that a second
    derivative taken later still finds the values that the forward pass used.
    """
    before = [(m, dict(m._buffers)) for m in model.modules() if _swappable(m)]
    try:
        copy_buffers(model)
        yield
    finally:
        for module, buffers in before:
            module._buffers.clear()
            module._buffers.update(buffers)


def copy_buffers(model: nn.Module) -> None:
    """Put copies in the place of all buffers, inside :func:`kept_buffers`.

    Between two steps of one client: the second goes on from what the first left.
    """
    copies: dict[int, Tensor | None] = {id(None): None}
    for module in filter(_swappable, model.modules()):
        for name, buffer in list(module._buffers.items()):
            if id(buffer) not in copies:
                copies[id(buffer)] = _copied(buffer)
            module._buffers[name] = copies[id(buffer)]


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


class _Held:
    """Everything mutable that the model holds, and its content.

    Containers are followed to any depth, objects of other classes only where a
    module holds them: what they are connected to is not the model's.
    """

    def __init__(self) -> None:
        self.undo: list[Callable[[], object]] = []
        self._seen: dict[int, Any] = {}

    def keep(self, value: Any, *, objects: bool = True) -> None:
        """Remember the content of ``value`` and of what it holds."""
        if id(value) in self._seen or isinstance(value, _ATOMS):
            return
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            self.keep(vars(value))
        elif isinstance(value, Tensor):
            if _restorable(value):
                self.undo.append(_TensorState.take(value).restore)
        elif isinstance(value, (dict, list, set, deque, tuple)):
            self._keep_container(value, objects)
        elif not self._keep_generator(value) and objects:
            self.keep(getattr(value, "__dict__", None), objects=False)

    def _keep_container(self, value: Any, objects: bool) -> None:
        if not isinstance(value, tuple):
            kept = value.copy()
            self.undo.append(lambda: _refill(value, kept))
        for part in value.values() if isinstance(value, dict) else value:
            self.keep(part, objects=objects)

    def _keep_generator(self, value: Any) -> bool:
        if isinstance(value, torch.Generator):
            state = value.get_state()
            self.undo.append(lambda: value.set_state(state))
        elif isinstance(value, random.Random):
            own = value.getstate()
            self.undo.append(lambda: value.setstate(own))
        elif type(value).__module__.partition(".")[0] == "numpy":
            self._keep_numpy(value)
        else:
            return False
        return True

    def _keep_numpy(self, value: Any) -> None:
        import numpy as np

        if isinstance(value, np.ndarray) and value.flags.writeable:
            kept = value.copy()
            self.undo.append(lambda: np.copyto(value, kept))
        elif isinstance(value, np.random.RandomState):
            state = value.get_state()
            self.undo.append(lambda: value.set_state(state))
        elif isinstance(value, np.random.Generator):
            inner = value.bit_generator.state
            self.undo.append(lambda: setattr(value.bit_generator, "state", inner))


def _do_all(steps: list[Callable[[], object]]) -> None:
    """Every step, outer containers first, even when Ctrl-C is pressed once more."""
    again: KeyboardInterrupt | None = None
    for step in steps:
        try:
            step()
        except KeyboardInterrupt as interrupt:
            again = interrupt
            step()
    if again is not None:
        raise again


_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, ModuleType, torch.dtype,
    torch.device, FunctionType, BuiltinFunctionType, MethodType, CodeType,
)  # fmt: skip
"""Never changed by a forward pass, or not the model's own."""


def _restorable(tensor: Tensor) -> bool:
    return not nn.parameter.is_lazy(tensor) and tensor.device.type != "meta"


def _refill(container: Any, kept: Any) -> None:
    """Put a container back in place, the order of its entries included."""
    now, then = list(container), list(kept)
    same = len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True))
    if isinstance(container, dict):
        same = same and all(container[k] is kept[k] for k in kept)
    if same:
        return
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(kept)
    else:
        container.extend(kept)


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
    bits = _BITS.get(a.element_size())
    if a.is_floating_point() and bits is not None:
        # As integers, so that NaN equals itself and -0 differs from 0.
        return torch.equal(a.view(bits), b.view(bits))
    return torch.equal(a, b)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
