"""One number is missing: how far along a known direction the image lies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from privaudit.attacks._compared import error_of
from privaudit.attacks._forms import EXACT, Attempt
from privaudit.attacks._scene import Scene
from privaudit.tape import Tape
from privaudit.types import Batch

_STEPS = 24
_SHRINK = 0.82
_SLACK = 0.02
_STARTS = 3


def find_scale(
    form: str, scene: Scene, direction: Tensor, tape: Tape | None
) -> Attempt:
    """Search scale and sign so that the rest of the gradient is matched.

    The image is affine in the scale, so the box [0, 1] bounds the search from both
    sides; nothing of the truth is needed.

    Args:
        form: Name for the answer.
        scene: The observation.
        direction: First-layer input up to scale and sign.
        tape: The client's masks.
    """
    inputs, first = scene.structure.inputs, scene.structure.first
    origin = inputs.invert(torch.zeros_like(direction))
    slope = inputs.invert(direction) - origin
    # Once more with a step of visible size: a difference of near equals is rounding.
    length = 0.25 / slope.abs().max().clamp_min(1e-12)
    slope = (inputs.invert(length * direction) - origin) / length
    low, high = interval(origin, slope)
    others = frozenset(scene.observation.gradients) - {first.weight or ""}
    if not others:
        return Attempt(form, False, "scale unknown: nothing else is shared")
    error = _objective(scene, origin, slope, tape=tape, names=others)
    scale, best, rival = _search(error, low, high)
    image = origin + scale * slope
    whole = scene.recomputed_error(image, tape)
    residual = best if whole is None else whole
    # Under noise no scale fits exactly: a rival has to fit clearly worse.
    unique = rival >= max(EXACT, 2 * best)
    reason = f"{first.path}: direction from its gradient, scale from the rest of it"
    if residual >= EXACT:
        reason += f"; approximate: off by {residual:.1e} (relative)"
    if not unique:
        reason += "; another scale or sign matches as well"
    return Attempt(form, True, reason, image, residual, unique, tape)


def interval(origin: Tensor, slope: Tensor) -> tuple[float, float]:
    """Scales for which ``origin + s · slope`` stays in [0, 1], with a little slack."""
    moving = slope.abs() > 1e-9 * slope.abs().max()
    at, per = origin[moving], slope[moving]
    ends = torch.stack([(-_SLACK - at) / per, (1 + _SLACK - at) / per])
    return float(ends.min(0).values.max()), float(ends.max(0).values.min())


def _objective(
    scene: Scene,
    origin: Tensor,
    slope: Tensor,
    *,
    tape: Tape | None,
    names: frozenset[str],
) -> Callable[[float], float]:
    observed = {n: scene.observation.gradients[n] for n in names}
    target, labels = scene.target, scene.labels

    def error(scale: float) -> float:
        batch = Batch((origin + scale * slope).float(), labels)
        guess = target.exposure.gradient(target.model, batch, tape=tape, names=names)
        return error_of(target, guess, observed)

    return error


def _search(
    error: Callable[[float], float], low: float, high: float
) -> tuple[float, float, float]:
    """The best scale, its error, and the error of the best rival elsewhere."""
    from scipy.optimize import minimize_scalar

    grid = [high * _SHRINK**k for k in range(_STEPS) if high > 0]
    grid += [low * _SHRINK**k for k in range(_STEPS) if low < 0]
    grid = sorted(grid) or [0.0]
    coarse = [error(s) for s in grid]
    found: list[tuple[float, float]] = []
    for i in _valleys(coarse)[:_STARTS]:
        left, right = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
        if left == right:
            found.append((coarse[i], grid[i]))
            continue
        width = max(abs(left), abs(right))
        fit = minimize_scalar(
            error, bounds=(left, right), method="bounded",
            options={"xatol": 1e-8 * width, "maxiter": 60},
        )  # fmt: skip
        found.append((float(fit.fun), float(fit.x)))
    found.sort()
    best, scale = found[0]
    rivals = [e for e, s in found[1:] if abs(s - scale) > 1e-3 * abs(scale)]
    return scale, best, min(rivals, default=float("inf"))


def _valleys(values: list[float]) -> list[int]:
    """Indices of local minima, the deepest first."""
    padded = [float("inf"), *values, float("inf")]
    inner = range(1, len(padded) - 1)
    low = [i - 1 for i in inner if padded[i] <= min(padded[i - 1], padded[i + 1])]
    return sorted(low, key=lambda i: values[i])
