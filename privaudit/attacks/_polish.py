"""Polish: some hundred steps of free pixels from the images of another attack.

A network, learnt or not, draws smooth images; what the features say beyond that is
had by moving the pixels. Source: measured (docs/compute.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privaudit.attacks._descend import Course
from privaudit.attacks._feature_search import by_descent, search_features
from privaudit.attacks._guesses import BoxedPixels
from privaudit.attacks._restarts import MEAN
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction, Search

SHARE = 0.2
"""Of the seconds of an attack that is followed by a polish."""


@dataclass(frozen=True, kw_only=True)
class Polish:
    """How images are polished.

    Attributes:
        steps: Iterations.
        learning_rate: Of Adam, in units of normalised pixels.
        tv_weight: λ_TV at the start.
        tv_weight_end: λ_TV at the end.
        patch_weight: λ_patch; for tokens on a grid only.
        opponent: Total variation of brightness and of colour apart.
        distance: Of features, by name; None: as the layout asks. The cosine of tokens
            stops far from the truth (measured, docs/compute.md).
        together: Images in one loop.
    """

    steps: int
    learning_rate: float = 0.15
    tv_weight: float = 0.3
    tv_weight_end: float = 0.05
    patch_weight: float = 0.001
    opponent: bool = True
    distance: str | None = "mean_squared_error"
    together: int = 16

    def course(self) -> Course:
        """As the loop takes it."""
        return Course(
            learning_rate=self.learning_rate,
            iterations=self.steps,
            smooth=self.tv_weight,
            smooth_end=self.tv_weight_end,
            seams=self.patch_weight,
            give_up=self.steps,
            cool=0.5,
        )


def polish_images(
    target: FeatureTarget,
    observation: FeatureObservation,
    images: Tensor,
    *,
    how: Polish,
    budget: Budget,
) -> list[Reconstruction]:
    """Move the pixels of ``images`` until they fit better; one answer an image.

    An image whose features fit no better afterwards is left as it was: what smoothing
    moves it to is not what was sent.

    Args:
        target: Model and cut.
        observation: What was sent for each image.
        images: (batch, C, H, W) in [0, 1], where to start.
        how: Steps and weights.
        budget: Seconds and iterations at most.
    """
    given = images.to(observation.features)

    def start(part: slice, restarts: int, _: torch.Generator) -> BoxedPixels:
        return BoxedPixels(given[part].repeat(restarts, 1, 1, 1))

    plan = by_descent(
        how.course(),
        start,
        distance=how.distance,
        together=how.together,
        opponent=how.opponent,
        form="polish",
    )
    once = budget.model_copy(update={"restarts": 1})
    found = search_features(
        target, observation, plan=plan, budget=once, generator=torch.Generator()
    )
    return [_no_worse(after, given[i : i + 1]) for i, after in enumerate(found)]


def _no_worse(after: Reconstruction, before: Tensor) -> Reconstruction:
    search = after.search
    if search is None or search.loss_final < search.loss_start:
        return after
    return replace(
        after,
        images=before.float().clamp(0, 1),
        search=replace(search, loss_final=search.loss_start),
        notes=(*after.notes, "moved pixels fit no better: left as they were"),
    )


def polished(
    target: FeatureTarget,
    observation: FeatureObservation,
    found: Sequence[Reconstruction],
    *,
    how: Polish,
    budget: Budget,
) -> list[Reconstruction]:
    """What an attack found, polished; what has no image stays as it is.

    Args:
        target: Model and cut.
        observation: What was sent for each image.
        found: One an image.
        how: Steps and weights.
        budget: What is left for it.
    """
    answers = list(found)
    kept = [i for i, one in enumerate(found) if one.images is not None]
    if not kept or any(one.reason == INTERRUPTED for one in found):
        return answers
    part = FeatureObservation(observation.features[kept], observation.image_shape)
    start = torch.cat([i for i in (found[k].images for k in kept) if i is not None])
    done = polish_images(target, part, start, how=how, budget=budget)
    for index, after in zip(kept, done, strict=True):
        answers[index] = _joined(answers[index], after)
    return answers


def share_for_polish(budget: Budget, steps: int) -> tuple[Budget, Budget]:
    """What the attack may spend, and what its polish may."""
    if not steps or budget.seconds is None:
        return budget, budget
    own, rest = budget.seconds * (1 - SHARE), budget.seconds * SHARE
    return (
        budget.model_copy(update={"seconds": own}),
        budget.model_copy(update={"seconds": rest}),
    )


def _joined(before: Reconstruction, after: Reconstruction) -> Reconstruction:
    """One search of two parts; a part that was cut short is not hidden."""
    if after.images is None or after.search is None:
        return before
    cut_short = before.state == "stopped"
    return replace(
        after,
        state=before.state if cut_short else after.state,
        reason=before.reason
        if cut_short
        else f"{before.reason}; polish {after.reason}",
        form=f"{before.form}, polished",
        notes=(*(n for n in before.notes if not n.startswith(MEAN)), *after.notes),
        search=_one_search(before.search, after.search),
    )


def _one_search(before: Search | None, after: Search) -> Search:
    if before is None:
        return after
    shift = before.iterations
    return replace(
        after,
        loss_start=before.loss_start,
        iterations=shift + after.iterations,
        restarts=before.restarts,
        curve=[*before.curve, *((shift + i, v) for i, v in after.curve)],
        pictures=[*before.pictures, *((shift + i, p) for i, p in after.pictures)],
    )
