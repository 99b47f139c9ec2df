"""Why a training step failed, in the user's own names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from privaudit.errors import PrivauditError, UnsupportedModelError
from privaudit.tape import readable
from privaudit.tape.owners import Owners


def explain_step_failure(
    error: Exception, model: nn.Module, plain: Callable[[], None] | None
) -> PrivauditError:
    """Turn an exception of the step into one that names layer, reason and way out.

    Args:
        error: What was raised.
        model: The user's model.
        plain: The same step as ordinary training makes it; None when the cause is
            known to be the model's.
    """
    if isinstance(error, PrivauditError):
        return error
    where = innermost_module(error, model)
    text = str(error).split("\n")[0].split(". Hint:")[0]
    if not isinstance(error, RuntimeError):
        # Not one of autograd's: the model itself raised it, with or without an audit.
        text, plain = f"{type(error).__name__}: {text}", None
    if "Expected more than 1" in text:
        return _one_value(where, text)
    if plain is None:
        return UnsupportedModelError(
            where, expected="a training step", got=text, hint="Mend the model first."
        )
    culprit = _fails_plainly(model, plain)
    if culprit is None:
        return UnsupportedModelError(
            where,
            expected="the same step under the audit's conditions",
            got=text,
            hint="Ordinary training works, the audited step does not: please report "
            "this model.",
        )
    return UnsupportedModelError(
        culprit if culprit != type(model).__name__ else where,
        expected="a model that can be trained",
        got=text,
        hint=_remedy(text),
    )


def _remedy(text: str) -> str:
    """Most often the images are not what the model takes, and it is sound."""
    if "dtype" in text or "type (" in text:
        return "The audit gives the model float32 images: pass model.float()."
    if "shape" in text or "to have" in text or "size" in text:
        return (
            "This model fails on these images in ordinary training as well. Give them "
            "the size and the channels that it takes, on the command line with --size "
            "and --image-mode; if they are right, mend the named module."
        )
    return "This model fails in ordinary training as well: mend the named module first."


def innermost_module(error: BaseException, model: nn.Module) -> str:
    """The deepest module of ``model`` on the traceback, as ``name: Class``."""
    names = {id(m): readable(n) for n, m in model.named_modules()}
    found: nn.Module = model
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            found = owner
        trace = trace.tb_next
    name = names[id(found)]
    return f"{name}: {type(found).__name__}" if name else type(found).__name__


def _one_value(where: str, text: str) -> UnsupportedModelError:
    batch = "Either audit a batch of at least 2 images, or "
    hint = (
        batch
        + 'state that the client runs it in eval mode: client=Client(mode="as_is")'
        " with the model's modes set as the client sets them."
        if "BatchNorm" in where
        else "Audit larger images: this layer has one value to normalise at this size."
        if "InstanceNorm" in where
        else batch + "larger ones."
    )
    return UnsupportedModelError(
        where,
        expected="more than one value per channel in train mode",
        got=text,
        hint=f"Normalising one value is undefined. {hint}",
    )


def _fails_plainly(model: nn.Module, plain: Callable[[], None]) -> str | None:
    """Name the module at fault if ordinary training fails too, else None."""
    saved: list[tuple[Tensor, int, str]] = []
    with Owners(model) as owners:

        def pack(tensor: Tensor) -> Tensor:
            saved.append((tensor, tensor._version, owners.current))
            return tensor

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                plain()
        except (RuntimeError, ValueError) as error:
            # Hooks may hide the version check; what was overwritten still shows.
            return _overwritten(saved) or innermost_module(error, model)
        changed = _overwritten(saved)
    if changed is None:
        return None
    try:
        plain()
    except (RuntimeError, ValueError):
        return changed
    return None


def _overwritten(saved: list[tuple[Tensor, int, str]]) -> str | None:
    """Owner of the first tensor that was changed after autograd had kept it."""
    for tensor, version, owner in saved:
        if tensor._version != version:
            return owner
    return None
