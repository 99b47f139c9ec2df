"""Noise levels of a diffusion model, and one step of sampling, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Prediction = Literal["epsilon", "v_prediction", "sample"]


@dataclass(frozen=True)
class Step:
    """From one noise level to the next lower one.

    Attributes:
        time: Where the noise predictor is asked, 0 … levels − 1.
        alpha: ᾱ_t, the share of the image's variance before the step.
        alpha_next: ᾱ after it; 1 after the last.
        sigma: σ_t = η √((1 − ᾱ')/(1 − ᾱ)) √(1 − ᾱ/ᾱ'), of the noise added once.
    """

    time: int
    alpha: float
    alpha_next: float
    sigma: float


def steps_of(
    alphas: Tensor, count: int, *, strength: float = 1.0, eta: float = 1.0
) -> list[Step]:
    """The steps from high noise to none, evenly spaced ("leading", offset 0).

    Args:
        alphas: (levels,), ᾱ falling with the level.
        count: T, of a whole run; at most the levels.
        strength: s; only the last ⌊s·T⌋ steps (at least one).
        eta: η; 0 adds no noise, 1 that of DDPM.

    Source: Song 2020, eq. 12 and 16; DRAG++ as Lei 2025, eq. 10.
    """
    stride = len(alphas) // count
    times = [index * stride for index in range(count)]
    wanted = max(1, int(strength * count))
    found = []
    for index in reversed(range(wanted)):
        alpha = float(alphas[times[index]])
        after = float(alphas[times[index - 1]]) if index else 1.0
        variance = (1 - after) / (1 - alpha) * (1 - alpha / after)
        found.append(Step(times[index], alpha, after, eta * math.sqrt(variance)))
    return found


def split(
    noisy: Tensor, output: Tensor, alpha: float, prediction: Prediction
) -> tuple[Tensor, Tensor]:
    """(x̂₀, ε̂) from what the noise predictor said of ``noisy``.

    Source: Tweedie's formula, Lei 2025, eq. 7; v as Salimans 2022, section 4.
    """
    a, s = math.sqrt(alpha), math.sqrt(1 - alpha)
    if prediction == "epsilon":
        return (noisy - s * output) / a, output
    if prediction == "v_prediction":
        return a * noisy - s * output, s * noisy + a * output
    return output, (noisy - a * output) / s


def ddim_mean(clean: Tensor, noise: Tensor, step: Step) -> Tensor:
    """Where a step leads before its noise is added. Source: Song 2020, eq. 12."""
    left = max(1 - step.alpha_next - step.sigma**2, 0.0)
    return math.sqrt(step.alpha_next) * clean + math.sqrt(left) * noise


def noise_again(after: Tensor, step: Step, noise: Tensor) -> Tensor:
    """One step back up: from ᾱ' to ᾱ. Source: Lei 2025, eq. 9."""
    ratio = step.alpha / step.alpha_next
    return math.sqrt(ratio) * after + math.sqrt(1 - ratio) * noise


def add_noise(clean: Tensor, alpha: float, noise: Tensor) -> Tensor:
    """An image at a noise level. Source: Lei 2025, eq. 10."""
    return math.sqrt(alpha) * clean + math.sqrt(1 - alpha) * noise


def cosine_alphas(levels: int = 1000) -> Tensor:
    """ᾱ of the cosine schedule, (levels,). Source: Nichol 2021, eq. 17."""

    def curve(at: Tensor) -> Tensor:
        return torch.cos((at + 0.008) / 1.008 * math.pi / 2).square()

    edges = torch.arange(levels + 1, dtype=torch.float64) / levels
    betas = (1 - curve(edges[1:]) / curve(edges[:-1])).clamp(max=0.999)
    return torch.cumprod(1 - betas, 0).float()
