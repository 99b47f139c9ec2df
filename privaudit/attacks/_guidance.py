"""Guided diffusion: sampling from a prior, pulled towards the features that were sent.

One loop for priors on pixels and on latents; they differ in how z becomes an image.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from privaudit._progress import tick
from privaudit.attacks._descend import End, Row
from privaudit.attacks._feature_loss import FeatureLoss, folded_products
from privaudit.attacks._minimise import GAIN
from privaudit.config import Budget
from privaudit.priors.diffusion import DiffusionModel
from privaudit.priors.diffusion.schedule import (
    Step,
    add_noise,
    ddim_mean,
    noise_again,
    split,
    steps_of,
)

BETAS = (0.9, 0.999)
TINY = 1e-8
SHOWN = 6
"""Pictures of a trajectory."""


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """How a prior is guided. Symbols as in Lei 2025, algorithm 1.

    Attributes:
        steps: T, of a whole run.
        rounds: k, at each noise level.
        weight: w, of the guidance in the direction of the noise.
        clip_norm: c_max, of one image's gradient.
        eta: η, of the noise; guidance acts through it.
        l2_weight: λ_ℓ2, of the mean square of x̂₀ on [-1, 1].
        strength: s, the part of the run that is made; below 1 a start is needed.
        moments: Adam's moments of the clipped gradients, kept over the whole run.
        through: The gradient passes through the noise predictor.
        mix: How noise and guidance are blended.
        clip_clean: Keep x̂₀ in [-1, 1] inside a step; None: as the prior's range asks.
        clamp_input: Clamp what the model is given to [0, 1]: pixels outside then get no
            gradient.
        give_up: Steps without a gain that end the run, in its second half; 0: none do.
    """

    steps: int
    rounds: int
    weight: float
    clip_norm: float
    eta: float
    l2_weight: float
    strength: float
    moments: bool
    through: bool
    mix: Literal["lerp", "slerp"]
    clip_clean: bool | None
    clamp_input: bool
    give_up: int


def guide(
    prior: DiffusionModel,
    loss: FeatureLoss,
    how: Guidance,
    *,
    shape: tuple[int, int, int],
    budget: Budget,
    noise: Noise,
    start: Tensor | None = None,
) -> list[Row]:
    """Sample one image a row; what one gets does not depend on the others.

    Args:
        prior: What images look like.
        loss: What each row is to match.
        how: The settings.
        shape: (channels, height, width) of what the model takes.
        budget: Seconds and iterations; steps are left out evenly where they run short.
        noise: Draws for all rows.
        start: (rows, C, H, W) in [0, 1] to begin from; None: from noise.
    """
    run = _Guided(prior, loss, how, shape, noise, budget)
    with folded_products(loss.target.model):
        return run.rows(run.sample(start))


@dataclass(eq=False)
class Noise:
    """Normal draws: images of one restart get the same, so none depends on another.

    Attributes:
        generator: On the CPU.
        images: Searched together.
        restarts: Of each.
    """

    generator: torch.Generator
    images: int
    restarts: int

    def draw(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """(restarts · images, *shape), all images of one restart, then of the next."""
        drawn = torch.randn((self.restarts, 1, *shape), generator=self.generator)
        wide = drawn.expand(-1, self.images, *[-1] * len(shape))
        return wide.reshape(-1, *shape).to(like)


@dataclass(eq=False)
class _Guided:
    prior: DiffusionModel
    loss: FeatureLoss
    how: Guidance
    shape: tuple[int, int, int]
    noise: Noise
    budget: Budget
    done: int = 0
    since_gain: int = 0
    curve: list[tuple[int, Tensor]] = field(default_factory=list)
    pictures: list[tuple[int, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.latent = self.prior.latent_shape(self.shape)
        self.moments = _Moments()
        self.started = time.monotonic()
        rows = len(self.loss.observed)
        self.clean: Tensor | None = None
        self.lowest = self.loss.observed.new_full((rows,), float("inf"))

    def sample(self, start: Tensor | None) -> End:
        """Go through all noise levels; the answer is what ended it."""
        plan = steps_of(
            self.prior.alphas, self.how.steps,
            strength=self.how.strength, eta=self.how.eta,
        )  # fmt: skip
        rounds, end = self.how.rounds, "iterations"
        allowed = (self.budget.iterations or len(plan) * rounds) // rounds
        if allowed < len(plan):
            plan, end = _thinned(plan, max(allowed, 1), self.how.eta), "budget"
        z = self._first(plan[0], start)
        shown = {round(i * (len(plan) - 1) / (SHOWN - 1)) for i in range(SHOWN)}
        index = 0
        try:
            while index < len(plan):
                z = self._level(z, plan[index])
                self._look(index in shown, len(plan) * rounds)
                index += 1
                if self._stuck(index / len(plan)):
                    return "plateau"
                left = self._affordable(index)
                if left < len(plan) - index:
                    end = "seconds"
                    if not left:
                        return "seconds"
                    plan = [*plan[:index], *_thinned(plan[index:], left, self.how.eta)]
        except KeyboardInterrupt:
            return "interrupted"
        self.clean = z
        return end  # type: ignore[return-value]

    def rows(self, end: End) -> list[Row]:
        """What was found: x̂₀ at the end of the run."""
        count = len(self.loss.observed)
        with torch.no_grad():
            images = torch.full((count, *self.shape), 0.5).to(self.loss.observed)
            if self.clean is not None:
                images = self._images(self.prior.decode(self.clean)).clamp(0, 1)
            finite = images.flatten(1).isfinite().all(1)
            images = images.nan_to_num(0.5)
            finals = self.loss.matching(images)
        values = torch.where(finite, finals, finals.new_full((), float("inf"))).tolist()
        return [
            Row(
                images[i : i + 1].float().clone(),
                values[i],
                float(self.curve[0][1][i]) if self.curve else float("nan"),
                float(finals[i]),
                self.done,
                end if math.isfinite(values[i]) else "numerical",
                [(at, float(v[i])) for at, v in self.curve],
                [(at, p[i].clone()) for at, p in self.pictures],
            )
            for i in range(count)
        ]

    def _first(self, step: Step, start: Tensor | None) -> Tensor:
        noise = self.noise.draw(self.latent, self.loss.observed)
        if start is None:
            return noise
        with torch.no_grad():
            clean = self.prior.encode(start.to(noise) * 2 - 1).to(noise)
        return add_noise(clean, step.alpha, noise)

    def _level(self, z: Tensor, step: Step) -> Tensor:
        """All rounds at one noise level; the answer is a level lower."""
        for turn in range(self.how.rounds):
            clean, noise, gradient = self._look_ahead(z, step)
            if self.how.moments:
                gradient = self.moments.update(gradient)
            self.done += 1
            after = ddim_mean(self._kept(clean), noise, step)
            drawn = self.noise.draw(self.latent, z)
            after = after + directed_noise(
                drawn, gradient, sigma=step.sigma, weight=self.how.weight,
                mix=self.how.mix,
            )  # fmt: skip
            if turn < self.how.rounds - 1:
                z = noise_again(after, step, self.noise.draw(self.latent, z))
        self.clean = self._kept(clean)
        return after

    def _look_ahead(self, z: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """(x̂₀, ε̂, the clipped gradient of the loss at x̂₀) for noisy z."""
        z = z.detach().requires_grad_()
        times = torch.full((len(z),), step.time, device=z.device)
        with torch.set_grad_enabled(self.how.through):
            output = self.prior.predict(z, times)
        clean, noise = split(z, output.to(z.dtype), step.alpha, self.prior.prediction)
        drawn = self.prior.decode(clean)
        images = self._images(drawn)
        images = images.clamp(0, 1) if self.how.clamp_input else images
        matching = self.loss.matching(images)
        extra = drawn.float().square().flatten(1).mean(1)
        total = matching + self.how.l2_weight * extra
        (gradient,) = torch.autograd.grad(total.sum(), z)
        self.latest = matching.detach()
        return clean.detach(), noise.detach(), clipped(gradient, self.how.clip_norm)

    def _images(self, drawn: Tensor) -> Tensor:
        """What the prior drew, in [0, 1] and of the model's size."""
        images = (drawn.float() + 1) / 2
        if images.shape[2:] == self.shape[1:]:
            return images
        return _resized(images, self.shape[1:])

    def _kept(self, clean: Tensor) -> Tensor:
        wanted = self.how.clip_clean
        wanted = self.prior.clip if wanted is None else wanted
        return clean.clamp(-1, 1) if wanted else clean

    def _look(self, show: bool, total: int) -> None:
        self.curve.append((self.done, self.latest))
        gained = self.latest < self.lowest * (1 - GAIN)
        self.lowest = torch.minimum(self.lowest, self.latest)
        self.since_gain = 0 if bool(gained.any()) else self.since_gain + 1
        tick(self.done, total, float(self.latest.mean()))
        if show and self.clean is not None:
            with torch.no_grad():
                drawn = self._images(self.prior.decode(self.clean))
            self.pictures.append((self.done, drawn.clamp(0, 1).cpu()))

    def _stuck(self, progress: float) -> bool:
        patient = self.how.give_up
        return bool(patient) and progress > 0.5 and self.since_gain >= patient

    def _affordable(self, made: int) -> int:
        """How many more noise levels the seconds allow, at the speed so far."""
        if self.budget.seconds is None:
            return 10**9
        gone = time.monotonic() - self.started
        left = self.budget.seconds - gone
        return max(0, int(left / (gone / made)))


@dataclass(eq=False)
class _Moments:
    """Adam's moments; the answer is a direction, no step is taken."""

    mean: Tensor | None = None
    square: Tensor | None = None
    count: int = 0

    def update(self, gradient: Tensor) -> Tensor:
        if self.mean is None or self.square is None:
            self.mean = torch.zeros_like(gradient)
            self.square = torch.zeros_like(gradient)
        self.count += 1
        first, second = BETAS
        self.mean = first * self.mean + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient.square()
        mean = self.mean / (1 - first**self.count)
        square = self.square / (1 - second**self.count)
        return mean / (square.sqrt() + TINY)


def clipped(gradient: Tensor, largest: float) -> Tensor:
    """Each row's gradient, its norm at most ``largest``."""
    norms = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    factor = (largest / (norms + TINY)).clamp(max=1)
    return gradient * _over(factor, gradient)


def unit(vectors: Tensor) -> Tensor:
    """Each row at norm 1; a row of zeros stays zero."""
    norms = torch.linalg.vector_norm(vectors.flatten(1), dim=1)
    return vectors / _over(norms.clamp_min(1e-30), vectors)


def directed_noise(
    drawn: Tensor,
    gradient: Tensor,
    *,
    sigma: float,
    weight: float,
    mix: Literal["lerp", "slerp"] = "lerp",
) -> Tensor:
    """Noise of norm r = √n·σ_t in each row, turned against the gradient.

    r · unit((1 − w)·σ_t·ε − w·r·unit(g̃)), to be added as it is. ``slerp`` goes the
    same way along the sphere.
    Source: Lei 2025, eq. 8 (Yang 2024), with the sign of a descent.

    Args:
        drawn: ε, (rows, …), standard normal.
        gradient: g̃, of the same shape.
        sigma: σ_t; 0 gives zeros.
        weight: w, from 0 (the noise alone) to 1 (the gradient alone).
        mix: Along the chord or along the sphere.
    """
    radius = math.sqrt(drawn[0].numel()) * sigma
    if not sigma:
        return torch.zeros_like(drawn)
    down = -unit(gradient)
    if mix == "lerp":
        return radius * unit((1 - weight) * sigma * drawn + weight * radius * down)
    along = unit(drawn)
    cosine = (along * down).flatten(1).sum(1).clamp(-1 + 1e-6, 1 - 1e-6)
    angle = torch.arccos(cosine).view(-1, *[1] * (drawn.dim() - 1))
    turned = (torch.sin((1 - weight) * angle) * along
              + torch.sin(weight * angle) * down)  # fmt: skip
    return radius * unit(turned)


def _over(per_row: Tensor, like: Tensor) -> Tensor:
    """``per_row`` in a shape that broadcasts over ``like``."""
    return per_row.view(-1, *[1] * (like.dim() - 1))


def _thinned(plan: list[Step], count: int, eta: float) -> list[Step]:
    """``count`` of the steps, evenly, the first and the way to no noise included."""
    chosen = [plan[round(i * len(plan) / count)] for i in range(count)]
    found = []
    for index, step in enumerate(chosen):
        after = chosen[index + 1].alpha if index + 1 < count else 1.0
        variance = (1 - after) / (1 - step.alpha) * (1 - step.alpha / after)
        found.append(Step(step.time, step.alpha, after, eta * math.sqrt(variance)))
    return found


def _resized(images: Tensor, size: tuple[int, ...]) -> Tensor:
    return F.interpolate(
        images, size, mode="bilinear", antialias=True, align_corners=False
    )
