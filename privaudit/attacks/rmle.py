"""Regularised maximum likelihood: move pixels until they send the same features."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field

from privaudit.attacks import _feature_loss
from privaudit.attacks._descend import Course, Guess
from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._feature_search import by_descent, search_features
from privaudit.attacks._guesses import BoxedPixels, Pixels
from privaudit.attacks._matching import USUAL
from privaudit.config import Budget

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit._pixels import Normalisation
    from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction


class Rmle(FeatureAttack):
    """Pixels by gradient descent on the distance of features, kept smooth.

    ``argmin_x d(f_c(x), h*) + λ_TV·TV(x) + λ_patch·R_patch(x)``. Pixels may leave
    [0, 1] on the way and are clamped at the end.
    Source: He 2019; Lei 2025, eq. 13 and 15, table 9. Differs in steps that are larger
    and shrink, in a total variation that fades, sees brightness and colours apart
    and weighs more where pixels outnumber what is sent, in the squared error of tokens,
    and in a stop where nothing is gained any more: the paper's is
    ``Rmle(learning_rate=0.05, cool=0, tv_weight_end=1.5, opponent=False,
    distance=None)``, but for that weight.
    """

    name: ClassVar[str] = "rmle"
    title: ClassVar[str] = "Regularised maximum likelihood"
    source: ClassVar[str] = "He 2019"

    start: Literal["mean", "best"] = "mean"
    """``mean``: mean colour; ``best``: the best images of the attacks before."""
    box: bool = False
    """True keeps pixels in [0, 1]; False clamps them at the end."""
    learning_rate: float = Field(default=0.2, ge=0)
    """Of Adam, in units of normalised pixels."""
    iterations: int = Field(default=20_000, ge=1)
    """At most."""
    give_up: int = Field(default=2000, ge=1)
    """Iterations without a gain of 1e-4 (relative) that end the search of an image."""
    tv_weight: float = Field(default=1.5, ge=0)
    """λ_TV at the start; times pixels per value that is sent, where that is above 1."""
    tv_weight_end: float = Field(default=0.05, ge=0)
    """λ_TV at the end, weighed as at the start."""
    opponent: bool = True
    """Total variation of brightness and of colour apart; False: of red, green, blue."""
    patch_weight: float = Field(default=0.001, ge=0)
    """λ_patch; for tokens on a grid only."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest norm of one image's gradient."""
    cool: float = Field(default=0.5, ge=0, le=1)
    """Share of the run, at its end, over which steps shrink to nothing."""
    distance: str | None = "mean_squared_error"
    """Of features, by name; None: cosine for tokens, else mean squared error."""
    restarts: int = Field(default=1, ge=1)
    """Searches of each image; those after the first start from noise."""
    together: int = Field(default=16, ge=1)
    """Images in one loop; fewer need less memory and give the same result."""

    @classmethod
    def tiny(cls) -> Rmle:
        """A few iterations."""
        return cls(iterations=60)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        given, note = self._given(target, observation)

        def start(part: slice, restarts: int, noise: torch.Generator) -> Guess:
            return self._guess(given[part], scale_of(target), restarts, noise)

        plan = by_descent(
            self._course(), start, distance=self.distance, restarts=self.restarts,
            together=self.together, opponent=self.opponent,
            notes=(note,) if note else (),
        )  # fmt: skip
        return search_features(
            target, observation, plan=plan, budget=budget, generator=generator
        )

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return _feature_loss.loss_at(target, observation, images, self.distance)

    def _course(self) -> Course:
        return Course(
            learning_rate=self.learning_rate,
            iterations=self.iterations,
            smooth=self.tv_weight,
            smooth_end=self.tv_weight_end,
            seams=self.patch_weight,
            clip=self.clip_norm,
            give_up=self.give_up,
            cool=self.cool,
        )

    def _given(
        self, target: FeatureTarget, observation: FeatureObservation
    ) -> tuple[Tensor, str]:
        """The starting images in [0, 1], and what there is to say about them."""
        features = observation.features
        zeros = features.new_zeros((len(observation), *observation.image_shape))
        mean = scale_of(target).invert(zeros)
        if self.start == "mean":
            return mean, ""
        best = target.memory.get("start")
        if not isinstance(best, torch.Tensor) or best.shape != mean.shape:
            return mean, "no attack before gave images: started from mean colour"
        return best.to(mean), ""

    def _guess(
        self,
        given: Tensor,
        scale: Normalisation,
        restarts: int,
        generator: torch.Generator,
    ) -> Guess:
        """The given start, and half a standard deviation of noise for each restart."""
        starts = [given]
        for _ in range(restarts - 1):
            noise = torch.randn(given.shape[1:], generator=generator).to(given)
            starts.append(scale.invert((0.5 * noise).expand_as(given)))
        together = torch.cat(starts)
        return BoxedPixels(together) if self.box else Pixels(together, scale)


def scale_of(target: FeatureTarget) -> Normalisation:
    """The scale in which images are searched; steps belong to it.

    The model's own normalisation; for models that take pixels as they are, a usual one.
    """
    own = target.exposure.normalisation
    return USUAL if own.is_identity else own
