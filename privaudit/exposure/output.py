"""How the user's model is called, and where its logits are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from privaudit.errors import UnsupportedModelError

_HINT = (
    "Pass loss=, a function of (output, labels) that returns the training loss, such "
    "as loss=lambda output, labels: F.cross_entropy(output[0], labels); on the command "
    "line let the factory return a module whose forward gives the logits alone."
)


def call(
    model: nn.Module, inputs: Tensor | Mapping[str, Tensor], keyword: str | None
) -> Any:
    """Run the model on a batch, by keyword where it takes no positional input."""
    if not isinstance(inputs, Tensor):
        return model(**inputs)
    if keyword is not None:
        return model(**{keyword: inputs})
    return model(inputs)


def input_keyword(model: nn.Module) -> str | None:
    """The name of the first argument of forward when it is keyword-only."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return None
    if not parameters or any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
        for p in parameters
    ):
        return None
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return named[0] if named else None


def logits(output: Any, where: str) -> Tensor:
    """The one tensor of ``output`` that can be the logits.

    Raises:
        UnsupportedModelError: There is none, or more than one.
    """
    if isinstance(output, Tensor):
        return output
    parts = _tensors(output)
    if len(parts) == 1:
        return next(iter(parts.values()))
    # A mapping may carry hidden states beside the logits, a second head may not
    # hide there: dropping it would be another gradient than the client's.
    others = [k for k in parts if k != "logits"]
    if "logits" in parts and not any("logits" in k or "aux" in k for k in others):
        return parts["logits"]
    listed = ", ".join(f"{k}: {tuple(v.shape)}" for k, v in parts.items()) or "nothing"
    raise UnsupportedModelError(
        where,
        expected="one tensor of logits",
        got=f"{type(output).__name__} with {listed}",
        hint=_HINT,
    )


def scalar(loss: Any, where: str) -> Tensor:
    """The loss that a user's callable gave, as a scalar.

    Raises:
        UnsupportedModelError: It is none.
    """
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.reshape(())
    got = (
        f"shape {tuple(loss.shape)}"
        if isinstance(loss, Tensor)
        else type(loss).__name__
    )
    raise UnsupportedModelError(
        f"Auditor.{where}",
        expected="a scalar tensor",
        got=got,
        hint='Reduce it, for example with reduction="mean".',
    )


def _tensors(output: Any) -> dict[str, Tensor]:
    if isinstance(output, Mapping):
        items = [(str(k), v) for k, v in output.items()]
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        items = [(k, getattr(output, k)) for k in output._fields]
    elif isinstance(output, (tuple, list)):
        items = [(f"[{i}]", v) for i, v in enumerate(output)]
    else:
        items = [(k, v) for k, v in getattr(output, "__dict__", {}).items()]
    return {k: v for k, v in items if isinstance(v, Tensor)}
