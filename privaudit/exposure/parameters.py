"""Which parameters a client shares, and what may be wrong with their gradients."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from privaudit.errors import UnsupportedModelError
from privaudit.tape import readable


def shared_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by the user's names; a tied one is listed once.

    Raises:
        UnsupportedModelError: There is none.
    """
    shared = {readable(n): p for n, p in model.named_parameters() if p.requires_grad}
    if not shared:
        raise UnsupportedModelError(
            type(model).__name__,
            expected="at least one trainable parameter",
            got="none: every parameter is frozen"
            if any(True for _ in model.parameters())
            else "a model without parameters",
            hint="No trainable parameter; nothing is shared; no gradient attack is "
            "possible. Set requires_grad on what the client trains.",
        )
    return shared


def stamp(parameter: Tensor) -> tuple[int, int]:
    """Changes whenever somebody accumulates into ``parameter.grad``."""
    grad = parameter.grad if parameter.is_leaf else None
    return (0, 0) if grad is None else (id(grad), grad._version)


def hidden_gradient(name: str) -> UnsupportedModelError:
    """The error for a parameter whose gradient autograd does not give."""
    return UnsupportedModelError(
        name,
        expected="a gradient from torch.autograd.grad",
        got="none, though .backward() gives it one",
        hint="Its module runs a backward pass of its own (reentrant checkpointing, "
        "reversible layers), which hides the parameter. Switch that off for the "
        "audit.",
    )


def require_finite(gradients: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinity, by name."""
    for name, value in gradients.items():
        bad = int((~value.isfinite()).sum())
        if bad:
            raise UnsupportedModelError(
                name,
                expected="a finite gradient",
                got=f"{bad} of {value.numel()} values NaN or infinite",
                hint="The client's step would be skipped by a GradScaler, and break "
                "training without one: mend the layer, the input or the loss scale.",
            )
