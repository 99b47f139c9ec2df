"""DRAG: images that a diffusion model finds likely, and that send the same features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator

from privaudit.attacks import _feature_loss
from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._guidance import Guidance, unguided
from privaudit.attacks._guided_search import (
    PRIOR,
    Guided,
    guided_search,
    prior_for,
    skipped,
)
from privaudit.config import Budget
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fast": {"steps": 20, "rounds": 4, "through": False},
    "cpu": {},
    "paper": {"steps": 250, "rounds": 16, "l2_weight": 0.01},
    "thorough": {"steps": 250, "rounds": 16},
}
"""Lengths by name: minutes on a laptop, the default, what a GPU makes (Lei 2025), and
that without the paper's pull to grey, which a small prior cannot bear."""


class Drag(FeatureAttack):
    """Sampling from a diffusion model, guided by the distance of features.

    At each of T noise levels, k times: denoise (Tweedie), ask how the features of the
    result differ, turn the noise of the next step against that gradient.
    Source: Lei 2025, algorithm 1; differs in fewer steps, which a CPU can make, in no
    pull to grey, and in what a small prior needs (x̂₀ kept in range inside a step,
    nothing clamped before the model). The paper's: ``Drag.preset("paper")``.
    """

    name: ClassVar[str] = "drag"
    title: ClassVar[str] = "Guided diffusion"
    source: ClassVar[str] = "Lei 2025"
    reads_priors: ClassVar[frozenset[str]] = frozenset({PRIOR})
    portable_priors: ClassVar[frozenset[str]] = frozenset({PRIOR})

    prior: str = "auto"
    """``digits``, ``natural``, a file, a folder or an identifier that diffusers reads;
    ``auto``: what was handed over, else the embedded one for the number of channels."""
    start: Literal["noise", "best"] = "noise"
    """``best``: the best images of the attacks before, noised to step s·T."""
    strength: float = Field(default=1.0, gt=0, le=1)
    """s, the part of the run that is made; below 1 it needs ``start="best"``."""
    steps: int = Field(default=50, ge=2, le=1000)
    """T, noise levels of a whole run."""
    rounds: int = Field(default=4, ge=1)
    """k, at each level."""
    weight: float = Field(default=0.2, ge=0, le=1)
    """w, of the guidance in the direction of the noise."""
    clip_norm: float = Field(default=0.02, gt=0)
    """c_max, largest norm of one image's gradient."""
    eta: float = Field(default=1.0, gt=0, le=1)
    """η, of the noise."""
    l2_weight: float = Field(default=0.0, ge=0)
    """λ_ℓ2, of the mean square of the image on [-1, 1]; the paper's .01 pulls every
    image to grey."""
    moments: bool = True
    """Adam's moments of the gradients."""
    through: bool = True
    """The gradient passes through the noise predictor; False is faster and weaker."""
    mix: Literal["lerp", "slerp"] = "lerp"
    """How noise and guidance are blended: along the chord or along the sphere."""
    clip_clean: bool | None = None
    """Keep x̂₀ in range inside a step; None: for priors on pixels."""
    clamp_input: bool = False
    """Clamp what the model is given to [0, 1]."""
    give_up: int = Field(default=0, ge=0)
    """Noise levels without a gain that end the second half of a run; 0: none do."""
    distance: str | None = None
    """Of features, by name; None: cosine for tokens, else mean squared error."""
    restarts: int = Field(default=1, ge=1)
    """Samples of each image; the one whose features fit best is kept, or their mean."""
    average: bool = False
    """Answer with the mean of the samples instead."""
    together: int = Field(default=16, ge=1)
    """Images in one loop; fewer need less memory and give the same result."""

    @classmethod
    def preset(cls, name: str, **settings: Any) -> Self:
        """A length by name: ``fast``, ``cpu`` or ``paper``; what each gives is measured
        in docs/compute.md.

        Args:
            name: Of the preset.
            settings: Others, which win over the preset's.

        Raises:
            ConfigError: No such preset.
        """
        if name in PRESETS:
            return cls(**{**PRESETS[name], **settings})
        raise ConfigError(
            f"{cls.__name__}.preset", expected=f"one of {', '.join(PRESETS)}",
            got=repr(name), hint="Or pass steps= and rounds=.",
        )  # fmt: skip

    @classmethod
    def tiny(cls) -> Drag:
        """A few steps."""
        return cls(steps=10, rounds=2)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        found = target.memory.get("start") if self.start == "best" else None
        if self.start == "best" and not isinstance(found, torch.Tensor):
            return skipped(observation, "no attack before gave images to start from")
        return self.guided(
            target, observation, found, budget=budget, generator=generator
        )

    def guided(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        start: object,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """Search from images of shape (batch, C, H, W) in [0, 1], or from noise."""
        prior = prior_for(
            self.prior, target, observation.image_shape, observation.features.device
        )
        if isinstance(prior, str):
            return skipped(observation, prior)
        given = start if isinstance(start, torch.Tensor) else None
        how = Guided(
            prior,
            self._guidance(),
            given,
            self.distance,
            self.restarts,
            self.together,
            self.average,
        )
        return guided_search(
            target, observation, how=how, budget=budget, generator=generator
        )

    def control_image(
        self,
        target: FeatureTarget,
        image_shape: tuple[int, int, int],
        generator: torch.Generator,
    ) -> Tensor | None:
        """A drawing of its prior: it can find nothing that the prior does not know."""
        device = next(target.model.parameters()).device
        prior = prior_for(self.prior, target, image_shape, device)
        if isinstance(prior, str):
            return None
        seed = int(torch.randint(2**62, (), generator=generator))
        like = torch.empty(0, device=device)
        return unguided(prior, self.steps, image_shape, like, seed)

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return _feature_loss.loss_at(target, observation, images, self.distance)

    def _guidance(self) -> Guidance:
        named = set(Guidance.__dataclass_fields__)
        return Guidance(**self.model_dump(include=named))

    @model_validator(mode="after")
    def _starts_somewhere(self) -> Drag:
        if self.strength < 1 and self.start == "noise":
            raise ValueError('strength below 1 needs start="best", or drag_pp')
        return self
