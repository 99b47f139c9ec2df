"""Steps in reduced precision: how much they round, and how attacks do without."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from privaudit._runner import Client
from privaudit.errors import ConfigError
from privaudit.exposure import GradientExposure, relative_error
from privaudit.exposure.precision import REDUCED, single
from privaudit.inventory import Finding
from privaudit.inventory.findings import (
    loss_scale_divided,
    loss_scale_suspected,
    no_full_precision,
    reduced_precision,
)
from privaudit.verdict import above_noise

SMALLEST_LOSS_SCALE = 2**8
"""Below it a factor may as well come from a sum over the batch."""
_SCALE_TOLERANCE = 1e-2


@dataclass(frozen=True, eq=False)
class Precision:
    """How precisely the client computes, and with what attacks look at it.

    Attributes:
        model: The user's model, or a float32 copy of one whose weights have fewer bits.
        exposure: The client's; ``precise`` where its step runs without autocast too.
        noise_floor: ‖g - g₃₂‖ / ‖g‖ on the first client; None in full precision, or
            where the step cannot be repeated in float32.
        gradient: How exact the gradient is that the server sees, in words.
        findings: What the report says of it.
    """

    model: nn.Module
    exposure: GradientExposure
    noise_floor: float | None = None
    gradient: str = "exact"
    findings: list[Finding] = field(default_factory=list)


def examine(model: nn.Module, exposure: GradientExposure, client: Client) -> Precision:
    """Repeat the client's step in float32, where it ran in anything less.

    Rounding is no defence, and an attacker need not round: attacks run in float32 on
    what the client rounded. Only the check of a claim repeats the client's autocast.
    """
    kind = _kind(model, client)
    if not kind:
        return Precision(model, exposure)
    try:
        twin = _in_full(model)
        full = exposure.gradient(
            twin, client.batch, tape=client.step.tape, precise=True
        )
    except Exception as error:  # noqa: BLE001  copy, cast and step are the user's code
        words = f"rounded by {kind}"
        found = no_full_precision(kind, str(error).splitlines()[0])
        return Precision(model, replace(exposure, precise=False), None, words, [found])
    floor = relative_error(full, client.step.observation.gradients)
    words = f"exact up to the rounding of {kind} ({floor:.1e} relative)"
    return Precision(twin, exposure, floor, words, [reduced_precision(kind, floor)])


def _kind(model: nn.Module, client: Client) -> str:
    """What reduces the precision; empty for none."""
    reduced = {p.dtype for p in model.parameters()} & set(REDUCED)
    listed = [f"weights in {_name(t)}" for t in sorted(reduced, key=str)]
    if client.step.autocast in REDUCED:
        listed.append(f"autocast to {_name(client.step.autocast)}")
    return " and ".join(listed)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _in_full(model: nn.Module) -> nn.Module:
    """The model itself, or a float32 copy where weights have fewer bits."""
    if not any(p.dtype in REDUCED for p in model.parameters()):
        return model
    return copy.deepcopy(model).float()


def loss_scale(
    guess: Mapping[str, Tensor], observed: Mapping[str, Tensor], noise: float
) -> float | None:
    """The factor that a ``GradScaler`` left: a power of two of at least 2^8.

    Args:
        guess: The gradient as it is without a factor.
        observed: What was sent.
        noise: The noise floor, which the comparison allows for.

    Returns:
        None where no such factor turns one into the other.
    """
    named = [n for n in observed if n in guess]
    pairs = [(guess[n].double().flatten(), observed[n].double()) for n in named]
    own = sum(float(g @ g) for g, _ in pairs)
    ratio = sum(float(g @ o.flatten()) for g, o in pairs) / own if own else 0.0
    if not SMALLEST_LOSS_SCALE / 2 < ratio < math.inf:
        return None
    scale = 2.0 ** round(math.log2(ratio))
    error = relative_error(guess, divided(observed, scale))
    fits = error <= above_noise(_SCALE_TOLERANCE, noise)
    return scale if fits and scale >= SMALLEST_LOSS_SCALE else None


def divided(gradients: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Every gradient without the factor ``scale``."""
    return {n: g / scale for n, g in gradients.items()}


def suspicious_ratio(
    like: Mapping[str, Tensor], observed: Mapping[str, Tensor]
) -> float | None:
    """How many times larger ``observed`` is than others are; None: it is not."""
    size, usual = (
        math.sqrt(sum(float(g.double().square().sum()) for g in m.values()))
        for m in (observed, like)
    )
    large = usual > 0 and size / usual >= SMALLEST_LOSS_SCALE
    return size / usual if large else None


@dataclass(frozen=True, eq=False)
class Unscaled:
    """A recorded gradient without its loss scale, and what the report says of it."""

    gradients: dict[str, Tensor]
    findings: list[Finding] = field(default_factory=list)


def unscaled(
    observed: Mapping[str, Tensor],
    given: float | None,
    *,
    same: Mapping[str, Tensor] | None,
    like: Mapping[str, Tensor],
    noise: float,
) -> Unscaled:
    """Divide the loss scale out, as given or as found; else say where one is likely.

    Args:
        observed: The recorded gradient.
        given: The scale as the caller knows it; None: to be found.
        same: The gradient recomputed at the truth; None where that cannot be done.
        like: The gradient of a step on other images or under other masks.
        noise: The noise floor.
    """
    observed = {n: single(g) for n, g in observed.items()}
    scale = given
    if scale is None and same is not None:
        scale = loss_scale(same, observed, noise)
    if scale is not None:
        finding = loss_scale_divided(scale, given=given is not None)
        return Unscaled(divided(observed, scale), [finding])
    ratio = suspicious_ratio(like, observed)
    return Unscaled(observed, [] if ratio is None else [loss_scale_suspected(ratio)])


def require_scale(scale: float | None) -> None:
    """Refuse what cannot be a loss scale.

    Raises:
        ConfigError: Not a finite number above 0.
    """
    if scale is not None and not 0 < scale < math.inf:
        raise ConfigError(
            "Auditor.attack_gradient(loss_scale=)",
            expected="a finite number above 0",
            got=repr(scale),
            hint="It is what scaler.get_scale() gave in the step; 1 for none.",
        )
