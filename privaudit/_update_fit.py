"""Does an update fit a model? By name, shape, type, and with a reason where not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privaudit.errors import ConfigError
from privaudit.tape import readable


@dataclass(frozen=True, eq=False)
class Fitted:
    """An update that fits a model.

    Attributes:
        gradients: Per shared parameter, in the model's order, on its device.
        left_out: Tensors of the update that are no gradients, with the reason.
    """

    gradients: dict[str, Tensor]
    left_out: dict[str, str]


def named_as(
    model: nn.Module, shared: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by the model's names; buffers and second names of tied ones left out."""
    given = _without_prefix(given, shared)
    first = {id(p): n for n, p in shared.items()}
    every = {readable(n): p for n, p in model.named_parameters(remove_duplicate=False)}
    buffers = {readable(n) for n, _ in model.named_buffers(remove_duplicate=False)}
    found = {n: g for n, g in given.items() if n in shared}
    left_out: dict[str, str] = {}
    for name in [n for n in given if n not in shared]:
        parameter, gradient = every.get(name), given[name]
        twin = None if parameter is None else first.get(id(parameter))
        if twin is not None:
            _same_twin(name, twin, gradient, found.setdefault(twin, gradient))
            left_out[name] = f"another name of {twin}"
        elif name in buffers:
            left_out[name] = "a buffer, which has no gradient"
        elif parameter is not None and not bool(gradient.any()):
            left_out[name] = "frozen, and unchanged"
        else:
            raise _foreign(model, name, frozen=parameter is not None)
    return found, left_out


def _without_prefix(
    given: Mapping[str, Tensor], shared: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Names as saved from a data-parallel wrapper, without it."""
    prefix = "module."
    if all(n.startswith(prefix) for n in given) and not any(n in shared for n in given):
        return {n.removeprefix(prefix): g for n, g in given.items()}
    return given


def _same_twin(name: str, twin: str, a: Tensor, b: Tensor) -> None:
    if a is not b and not torch.equal(a, b):
        raise ConfigError(
            f"update[{name!r}]",
            expected=f"the same gradient as {twin!r}: one tied parameter",
            got="another one",
            hint="The client's model does not tie them; load the model that it uses.",
        )


def _foreign(model: nn.Module, name: str, *, frozen: bool) -> ConfigError:
    return ConfigError(
        f"update[{name!r}]",
        expected=f"only tensors that this {type(model).__name__} trains",
        got="a parameter that is frozen here" if frozen else "a foreign tensor",
        hint="Set requires_grad as the client does."
        if frozen
        else "The update is of another model: build the client's own.",
    )


def missing_of(model: nn.Module, missing: list[str]) -> ConfigError:
    """The error that names what an update lacks."""
    listed = ", ".join(repr(n) for n in missing[:5])
    return ConfigError(
        f"update[{missing[0]!r}]",
        expected=f"a gradient for each parameter that {type(model).__name__} trains",
        got=f"none for {len(missing)} of them ({listed})",
        hint="Freeze here what the client does not train (requires_grad_(False)); a "
        "parameter that took no part in the step is None in from_gradients.",
    )


def fits(name: str, gradient: Tensor, parameter: Tensor) -> None:
    """Refuse another shape or type than the parameter has, and NaN."""
    if gradient.shape != parameter.shape:
        raise ConfigError(
            f"update[{name!r}]",
            expected=f"shape {tuple(parameter.shape)}",
            got=str(tuple(gradient.shape)),
            hint="The update is of a model with other sizes.",
        )
    if gradient.dtype != parameter.dtype:
        raise ConfigError(
            f"update[{name!r}]",
            expected=f"{parameter.dtype}, as the model's parameter",
            got=str(gradient.dtype),
            hint="Convert the model or the gradient on purpose, such as "
            "Update.from_gradients({n: g.float() for n, g in gradients.items()}).",
        )
    require_finite(name, gradient)


def require_finite(name: str, gradient: Tensor) -> None:
    """Refuse NaN and infinity, by name."""
    bad = int((~gradient.isfinite()).sum())
    if bad:
        raise ConfigError(
            f"update[{name!r}]",
            expected="a finite gradient",
            got=f"{bad} of {gradient.numel()} values NaN or infinite",
            hint="A GradScaler skips such a step and sends nothing: record one whose "
            "loss scale fits, with scaler.step(optimizer) inside the context.",
        )
