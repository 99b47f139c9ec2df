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
from privaudit.attacks._directed_noise import Moments, Noise, clipped, directed_noise
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


def unguided(
    prior: DiffusionModel,
    steps: int,
    shape: tuple[int, int, int],
    like: Tensor,
    seed: int,
) -> Tensor:
    """What the prior draws by itself, (1, C, H, W) in [0, 1].

    Args:
        prior: Draws.
        steps: T.
        shape: Of the image.
        like: On the device where it is drawn.
        seed: Of the noise.
    """
    noise = Noise(torch.Generator().manual_seed(seed), 1, 1)
    latent = prior.latent_shape(shape)
    z = noise.draw(latent, like)
    with torch.no_grad():
        for step in steps_of(prior.alphas, steps):
            times = torch.full((1,), step.time, device=z.device)
            output = prior.predict(z, times).to(z.dtype)
            clean, said = split(z, output, step.alpha, prior.prediction)
            clean = clean.clamp(-1, 1) if prior.clip else clean
            z = ddim_mean(clean, said, step) + step.sigma * noise.draw(latent, z)
        return fitted(prior.decode(z), shape).clamp(0, 1).nan_to_num(0.5)


def fitted(drawn: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """What a prior drew on [-1, 1], in [0, 1] and of the model's size."""
    images = (drawn.float() + 1) / 2
    if images.shape[2:] == shape[1:]:
        return images
    return F.interpolate(
        images, shape[1:], mode="bilinear", antialias=True, align_corners=False
    )


@dataclass(eq=False)
class _Guided:
    prior: DiffusionModel
    loss: FeatureLoss
    how: Guidance
    shape: tuple[int, int, int]
    noise: Noise
    budget: Budget
    start: Tensor | None = None
    done: int = 0
    since_gain: int = 0
    curve: list[tuple[int, Tensor]] = field(default_factory=list)
    pictures: list[tuple[int, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.latent = self.prior.latent_shape(self.shape)
        self.moments = Moments()
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
        rounds = self.how.rounds
        end: End = "iterations"
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
        return end

    def rows(self, end: End) -> list[Row]:
        """What was found: x̂₀ at the end of the run."""
        count = len(self.loss.observed)
        with torch.no_grad():
            images = torch.full((count, *self.shape), 0.5).to(self.loss.observed)
            if self.clean is not None:
                images = fitted(self.prior.decode(self.clean), self.shape).clamp(0, 1)
            finite = images.flatten(1).isfinite().all(1)
            images = images.nan_to_num(0.5)
            finals = self.loss.matching(images)
            first = (
                self.curve[0][1] if self.curve else torch.full_like(finals, math.nan)
            )
            if self.start is not None:
                # What such a run had before it is the start, which it may return.
                first = self.loss.matching(torch.full_like(images, 0.5))
                images, finals = self._no_worse(images, finals)
        values = torch.where(finite, finals, finals.new_full((), float("inf"))).tolist()
        return [
            Row(
                images[i : i + 1].float().clone(),
                values[i],
                float(first[i]),
                float(finals[i]),
                self.done,
                end if math.isfinite(values[i]) else "numerical",
                [(at, float(v[i])) for at, v in self.curve],
                [(at, p[i].clone()) for at, p in self.pictures],
            )
            for i in range(count)
        ]

    def _no_worse(self, images: Tensor, finals: Tensor) -> tuple[Tensor, Tensor]:
        """Where the start fits better than the end, a weak prior only did harm."""
        start = torch.as_tensor(self.start).to(images)
        before = self.loss.matching(start)
        kept = (before < finals)[:, None, None, None]
        return torch.where(kept, start, images), torch.minimum(before, finals)

    def _first(self, step: Step, start: Tensor | None) -> Tensor:
        noise = self.noise.draw(self.latent, self.loss.observed)
        self.start = start
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
        images = fitted(drawn, self.shape)
        images = images.clamp(0, 1) if self.how.clamp_input else images
        matching = self.loss.matching(images)
        extra = drawn.float().square().flatten(1).mean(1)
        total = matching + self.how.l2_weight * extra
        (gradient,) = torch.autograd.grad(total.sum(), z)
        self.latest = matching.detach()
        return clean.detach(), noise.detach(), clipped(gradient, self.how.clip_norm)

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
                drawn = fitted(self.prior.decode(self.clean), self.shape)
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


def _thinned(plan: list[Step], count: int, eta: float) -> list[Step]:
    """``count`` of the steps, evenly, the first and the way to no noise included."""
    chosen = [plan[round(i * len(plan) / count)] for i in range(count)]
    found = []
    for index, step in enumerate(chosen):
        after = chosen[index + 1].alpha if index + 1 < count else 1.0
        variance = (1 - after) / (1 - step.alpha) * (1 - step.alpha / after)
        found.append(Step(step.time, step.alpha, after, eta * math.sqrt(variance)))
    return found
