"""Gradient matching: find the image, and what else is unknown, by its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit._pixels import Normalisation
from privaudit.attacks._compared import apart, observed_for
from privaudit.attacks._minimise import Descent, Objective, Schedule, Unknown, minimise
from privaudit.attacks._norms import NormWatch
from privaudit.config import Budget
from privaudit.distances import Distance
from privaudit.exposure.predict import GradientGuess, predict
from privaudit.priors import Prior, TotalVariation
from privaudit.tape import Tape
from privaudit.types import Batch, Observation, Target

PRIOR_PER_NOISE = 0.1
"""Least λ of the total variation where all of the gradient is noise; in between in
proportion. Measured on a LeNet at σ of 0.1 and 0.5."""

STOP = 0.5
"""Share of the noise floor at which a search ends. At the floor itself the image still
gets better where the prior holds it: SSIM 0.90 in place of 0.93 at σ = 0.1 (measured).
"""
OWN = 0x5EED
"""Of the numbers by which the effect of noise on a distance is measured."""

USUAL = Normalisation((0.5,), (0.25,))
"""About the mean and spread of natural images."""


@dataclass(frozen=True)
class Weighted:
    """A prior, and how much it counts."""

    weight: float
    prior: Prior


@dataclass(frozen=True, eq=False)
class Start:
    """Where a run begins.

    Attributes:
        inputs: (batch, channels, height, width), as the model takes it; several
            batches one after the other are searched together.
        logits: (batch, classes) of unknown labels; None: they are known.
    """

    inputs: Tensor
    logits: Tensor | None = None


@dataclass(frozen=True, eq=False)
class UnknownMasks:
    """The masks that are optimised beside the image; none for the base attacks.

    Attributes:
        start: One tensor per mask.
        tape_of: Puts masks into a tape.
        penalty: λ·Ω of the masks; None: none.
        held: Per mask which entries stay as they start; None: none.
    """

    start: Sequence[Tensor]
    tape_of: Callable[[Sequence[Tensor]], Tape | None]
    penalty: Callable[[Sequence[Tensor]], Tensor] | None = None
    held: Sequence[Tensor | None] = ()

    def projection(self, index: int) -> Callable[[Tensor], Tensor]:
        """Puts a mask back into [0, 1], and its known entries to their value."""
        known = self.start[index].detach().clone()
        held = self.held[index] if self.held else None
        if held is None:
            return lambda v: v.clamp(0, 1)
        return lambda v: torch.where(held, known, v.clamp(0, 1))


@dataclass(frozen=True, eq=False)
class Matching:
    """The objective of gradient matching for one observation.

    Attributes:
        target: Model, exposure, knowledge.
        observation: What is matched.
        labels: (batch,), known or inferred; None: optimised.
        distance: How gradients are compared.
        priors: What images look like, each with its λ.
        sign: True moves images by the sign of their gradient.
        boxed: True keeps pixels in [0, 1] while they are searched.
    """

    target: Target
    observation: Observation
    labels: Tensor | None
    distance: Distance
    priors: Sequence[Weighted]
    sign: bool = True
    boxed: bool = True

    @property
    def scale(self) -> Normalisation:
        """The scale in which images are searched: steps and prior belong to it.

        The model's own normalisation; for models that take pixels as they are, one of
        the usual size. In [0, 1] itself the usual steps would be four times too large.
        """
        own = self.target.exposure.normalisation
        return USUAL if own.is_identity else own

    def guess(
        self,
        inputs: Tensor,
        tape: Tape | None,
        logits: Tensor | None = None,
        *,
        norms: NormWatch | None = None,
    ) -> GradientGuess:
        """The gradient of model inputs (normalised images) under given masks.

        Args:
            inputs: (batch, channels, height, width), as the model takes it.
            tape: The masks; None: nothing is dropped.
            logits: (batch, classes) of the labels, where those are unknown.
            norms: Collects what batch norms are given.
        """
        exposure = self.target.exposure
        labels = self.labels if logits is None else logits.softmax(-1)
        batch = Batch(self.scale.invert(inputs), labels)
        return predict(exposure, self.target.model, batch, tape, observer=norms)

    def observed(self, guess: GradientGuess) -> GradientGuess:
        """The observation in the form of a guess."""
        return observed_for(self.target, guess, self.observation.gradients)

    def apart(self, guess: GradientGuess, observed: GradientGuess) -> Tensor:
        """The distance of a guess to the observation in its form, a scalar."""
        return apart(self.distance, self.target, guess, observed)

    def weight_of(self, term: Weighted) -> float:
        """λ of a prior: noise leaves more to the total variation."""
        if isinstance(term.prior, TotalVariation):
            return max(term.weight, PRIOR_PER_NOISE * self.target.noise_share)
        return term.weight

    def noise_floor(self) -> float:
        """Matching loss that the noise leaves at the truth: nearer means fitting it.

        Measured on what was observed, made noisier by as much: fixed numbers, so that
        no generator moves, and not those that a client's noise may be made of.
        """
        share, draws = self.target.noise_share, torch.Generator().manual_seed(OWN)
        seen = {n: g.detach() for n, g in self.observation.gradients.items()}
        square = sum(float(g.double().square().sum()) for g in seen.values())
        count = sum(g.numel() for g in seen.values())
        std = (square / count * share / max(1 - share, 1e-6)) ** 0.5
        noisy = {
            n: g + std * torch.randn(g.shape, generator=draws).to(g)
            for n, g in seen.items()
        }
        pair = GradientGuess({}, seen), GradientGuess({}, noisy)
        return float(apart(self.distance, self.target, *pair))

    def minimise(
        self,
        start: Start,
        *,
        unknown_masks: UnknownMasks,
        schedule: Schedule,
        budget: Budget,
    ) -> Descent:
        """Run the loop over the image, the masks, and the labels if they are unknown.

        The unknowns come back in this order.

        Args:
            start: Image and, where they are unknown, labels.
            unknown_masks: What else is optimised.
            schedule: Of the loop.
            budget: What may be spent.
        """
        if self.target.noise_share:
            goal = max(schedule.goal, STOP * self.noise_floor())
            schedule = schedule.model_copy(update={"goal": goal})
        inputs = start.inputs.detach().clone().requires_grad_()
        masks = [m.detach().clone().requires_grad_() for m in unknown_masks.start]
        logits = start.logits
        if logits is not None:
            logits = logits.detach().clone().requires_grad_()
        low, high = self.box(inputs)
        observed: list[GradientGuess] = []

        def objective() -> Objective:
            norms = self._watch()
            tape = unknown_masks.tape_of(masks)
            distances = []
            for part in torch.split(inputs, self.observation.batch_size):
                guess = self.guess(part, tape, logits, norms=norms)
                if not observed:
                    observed.append(self.observed(guess))
                distances.append(self.apart(guess, observed[0]))
            matching = total = torch.stack(distances).mean()
            seen = () if norms is None else norms.seen
            for term in self.priors:
                total = total + self.weight_of(term) * term.prior.penalty(inputs, seen)
            if unknown_masks.penalty is not None:
                total = total + unknown_masks.penalty(masks)
            return Objective(matching, total)

        def project(images: Tensor) -> Tensor:
            return images.clamp(low, high) if self.boxed else images

        unknowns = [Unknown([inputs], project, sign=self.sign)]
        for index, mask in enumerate(masks):
            unknowns.append(Unknown([mask], unknown_masks.projection(index)))
        if logits is not None:
            unknowns.append(Unknown([logits], lambda v: v))
        return minimise(objective, unknowns, schedule=schedule, budget=budget)

    def _watch(self) -> NormWatch | None:
        """Something that looks at batch norms, where a prior asks for it."""
        wanted = any(t.prior.watches_norms for t in self.priors)
        return NormWatch(self.target.model) if wanted else None

    def box(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The range of [0, 1] pixels as the model takes them, per channel."""
        return (
            self.scale.apply(torch.zeros_like(inputs)),
            self.scale.apply(torch.ones_like(inputs)),
        )
