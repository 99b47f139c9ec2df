"""Functions of ``torch.nn.functional`` that hide the calls they are made of.

Such a function asks first whether a mode wants it, and hands itself over. To see
what is inside, its own body is run once more with that question answered "no". So
attention, its dropout, and every random wrapper show their parts, whatever the
torch version writes into them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def _no(*_: object) -> bool:
    return False


@cache
def body_of(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """``func`` without its first question; None for anything but such a wrapper."""
    if not isinstance(func, FunctionType) or func.__module__ != F.__name__:
        return None
    if func.__closure__ is not None:
        return None
    seen = {name: _no for name in vars(F) if name.startswith("has_torch_function")}
    body = FunctionType(
        func.__code__, {**vars(F), **seen}, func.__name__, func.__defaults__
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def out_of_place(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor | None, tuple[Any, ...], dict[str, Any]]:
    """The same call with ``inplace=False``, and what it would have overwritten.

    In-place blocks second derivatives.
    """
    if not _takes_inplace(func):
        return None, args, kwargs
    bound = inspect.signature(func).bind(*args, **kwargs)
    given = bound.arguments
    drops = "dropout" in func.__name__
    if not given.get("inplace") or (drops and not given.get("training", True)):
        return None, args, kwargs
    given["inplace"], old = False, given["input"]
    if not drops:
        # Out of place, some activations keep their input, which may yet be changed.
        given["input"] = old.clone()
    return old, bound.args, bound.kwargs


@cache
def _takes_inplace(func: Callable[..., Any]) -> bool:
    return "inplace" in inspect.signature(func).parameters
