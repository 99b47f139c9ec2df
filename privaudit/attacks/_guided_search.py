"""What attacks with a diffusion prior share around the loop: the prior, the answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from privaudit.attacks._directed_noise import Noise
from privaudit.attacks._feature_search import (
    FeaturePlan,
    Part,
    search_features,
)
from privaudit.attacks._guidance import Guidance, guide, unguided
from privaudit.attacks._memory import is_short
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.priors.diffusion import DIFFUSION_PRIORS, DiffusionModel, loaded
from privaudit.priors.diffusion.find import AUTO, for_channels
from privaudit.types import Reconstruction

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.attacks._descend import Row
    from privaudit.types import FeatureObservation, FeatureTarget

PRIOR = "diffusion"
"""Its name among the priors that a user hands over."""


@dataclass(frozen=True, eq=False)
class Guided:
    """A search with a prior.

    Attributes:
        prior: What images look like.
        guidance: How it is guided.
        start: (batch, C, H, W) in [0, 1], one an image; None: from noise.
        distance: Of features, by name.
        restarts: Of each image.
        together: Images in one loop.
        average: Answer with the mean of the restarts.
    """

    prior: DiffusionModel
    guidance: Guidance
    start: Tensor | None
    distance: str | None
    restarts: int
    together: int
    average: bool = False


def guided_search(
    target: FeatureTarget,
    observation: FeatureObservation,
    *,
    how: Guided,
    budget: Budget,
    generator: torch.Generator,
) -> list[Reconstruction]:
    """Search every image; the best of its restarts, or their mean, is its answer."""
    shape = observation.image_shape
    seed = int(torch.randint(2**62, (), generator=generator))
    unknowns = torch.Size(how.prior.latent_shape(shape)).numel()

    def search(part: Part) -> tuple[list[Row], int]:
        count = len(part.loss.observed) // part.restarts
        start = None
        if how.start is not None:
            start = how.start[part.rows].repeat(part.restarts, 1, 1, 1)
        rows = guide(
            how.prior, part.loss, how.guidance, shape=shape, budget=part.budget,
            noise=Noise(part.generator, count, part.restarts), start=start,
        )  # fmt: skip
        return rows, unknowns

    plan = FeaturePlan(
        search, how.distance, how.restarts, how.together,
        average=how.average, form="guided diffusion",
        notes=lambda: [_learnt(how.prior), *how.prior.notes],
    )  # fmt: skip
    found = search_features(
        target, observation, plan=plan, budget=budget, generator=generator
    )
    found = [replace(one, prior=how.prior.card) for one in found]
    if any(one.reason == INTERRUPTED for one in found):
        return found  # Ctrl-C: nothing more is drawn
    try:
        alone = unguided(
            how.prior, how.guidance.steps, shape, observation.features, seed
        )
    except (RuntimeError, MemoryError) as error:
        if not is_short(error):
            raise
        # A control that cannot be drawn must not cost what was found.
        note = "negative control not drawn: out of memory"
        return [replace(found[0], notes=(*found[0].notes, note)), *found[1:]]
    return [replace(found[0], unguided=alone), *found[1:]]


def prior_for(
    name: str,
    target: FeatureTarget,
    image_shape: tuple[int, int, int],
    device: torch.device,
) -> DiffusionModel | str:
    """The prior in memory, loaded once in an audit; or why there is none.

    Raises:
        ConfigError: It is named, but cannot be had, or cannot draw such images.
    """
    given: object = target.priors.get(PRIOR) if name == AUTO else name
    channels = image_shape[0]
    if given is None:
        given = for_channels(channels)
    if given is None:
        return (
            f"no prior comes with the package for images of {channels} channel(s); "
            "pass priors={'diffusion': ...}"
        )
    key = f"diffusion prior: {given if isinstance(given, str) else id(given)}"
    known = target.memory.get(key)
    if not isinstance(known, DiffusionModel):
        known = loaded(given, DIFFUSION_PRIORS, device)
        target.memory[key] = known
    known.latent_shape(image_shape)
    return known


def skipped(observation: FeatureObservation, reason: str) -> list[Reconstruction]:
    """No answer for any image, and why."""
    return [Reconstruction(None, "skipped", reason)] * len(observation)


def _learnt(prior: DiffusionModel) -> str:
    card = prior.card
    return f"prior {card.name}: learnt from {card.learnt_from}; not for {card.not_for}"
