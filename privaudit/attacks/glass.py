"""GLASS: the image of a StyleGAN that sends the same features."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privaudit.attacks import _feature_loss
from privaudit.attacks._descend import Course, Row
from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._feature_search import FeaturePlan, Part, search_features
from privaudit.attacks._generator import (
    PRIOR,
    StyleGenerator,
    device_of,
    generator_from,
)
from privaudit.attacks._style_search import search_styles
from privaudit.config import Budget
from privaudit.types import Reconstruction

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privaudit.types import FeatureObservation, FeatureTarget


class Glass(FeatureAttack):
    """A search in the latents of a generator: first z, then its styles w⁺.

    ``argmin_z d(f_c(G(map(z))), h*) + λ_KL·KL(z)``, and from the w⁺ that z led to
    ``argmin_{w⁺} d(f_c(G(w⁺)), h*)``. Handed over as ``priors={"gan": module}``, or
    ``"path.py:factory"``: a module with

    - ``z_dim``, and ``mapping(z)``: (rows, z_dim) → w⁺, (rows, layers, width); or w,
      (rows, width), where ``num_ws`` says how many layers there are,
    - ``synthesis(w⁺)`` → images, (rows, C, H, W) on [-1, 1], -1 being black; the same
      for the same w⁺ (fixed noise). They are resized to what the model takes,
    - for generators with classes ``num_classes`` or ``embed``, an ``nn.Embedding`` or a
      tensor (classes, width): ``mapping(z, c)`` then gets c = softmax(logits) · embed,
      or without ``embed`` the softmax itself; logits start at zero.

    Source: Li 2023; Lei 2025, eq. 16 and 17, table 9. Differs in that the best z, not
    the last, leads to w⁺, in pixels that are clamped at the end only, and in a stop
    where nothing is gained any more (``give_up``).
    """

    name: ClassVar[str] = "glass"
    title: ClassVar[str] = "Search in a generator's latents"
    source: ClassVar[str] = "Li 2023"
    required: ClassVar[bool] = False
    reads_priors: ClassVar[frozenset[str]] = frozenset({PRIOR})
    portable_priors: ClassVar[frozenset[str]] = frozenset({PRIOR})

    learning_rate: float = Field(default=0.01, ge=0)
    """Of Adam, for z and for w⁺."""
    iterations: int = Field(default=20_000, ge=2)
    """Of both stages together, at most."""
    z_share: float = Field(default=0.5, gt=0, lt=1)
    """Of the iterations, for z; the rest is for w⁺. The papers name no share."""
    kl_weight: float = Field(default=1.0, ge=0)
    """λ_KL, of the divergence of z from a standard normal."""
    tv_weight: float = Field(default=0.0, ge=0)
    """λ_TV, of the image, in both stages."""
    give_up: int = Field(default=2000, ge=1)
    """Iterations without a gain of 1e-4 (relative) that end a stage of an image."""
    distance: str | None = None
    """Of features, by name; None: cosine for tokens, else mean squared error."""
    restarts: int = Field(default=1, ge=1)
    """Searches of each image, each from a z of its own."""
    together: int = Field(default=16, ge=1)
    """Images in one loop; fewer need less memory and give the same result."""

    @classmethod
    def tiny(cls) -> Glass:
        """A few iterations."""
        return cls(iterations=40)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        device = observation.features.device
        prior = self._prior(target, observation.image_shape, device)
        if prior is None:
            reason = (
                f"no generator was handed over; pass priors={{{PRIOR!r}: a module with "
                "mapping and synthesis}"
            )
            return [Reconstruction(None, "skipped", reason)] * len(observation)
        found = search_features(
            target, observation, plan=self._plan(prior, observation.image_shape),
            budget=budget, generator=generator,
        )  # fmt: skip
        alone = prior.sample(observation.image_shape[1:], generator)
        cards = [replace(one, prior=prior.card) for one in found]
        return [replace(cards[0], unguided=alone), *cards[1:]]

    def control_image(
        self,
        target: FeatureTarget,
        image_shape: tuple[int, int, int],
        generator: torch.Generator,
    ) -> Tensor | None:
        """A drawing of its generator: it can find nothing else."""
        device = device_of(target.model)
        prior = self._prior(target, image_shape, device)
        if prior is None:
            return None
        return prior.sample(image_shape[1:], generator)

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return _feature_loss.loss_at(target, observation, images, self.distance)

    def _plan(
        self, prior: StyleGenerator, image_shape: tuple[int, int, int]
    ) -> FeaturePlan:
        on_z = min(self.iterations - 1, max(1, round(self.z_share * self.iterations)))
        courses = (
            self._course(on_z, self.kl_weight),
            self._course(self.iterations - on_z, 0.0),
        )

        def search(part: Part) -> tuple[list[Row], int]:
            return search_styles(prior, part, size=image_shape[1:], courses=courses)

        return FeaturePlan(
            search, self.distance, self.restarts, self.together, form="latent search",
            notes=lambda: [prior.note] if prior.note else [],
        )  # fmt: skip

    def _course(self, iterations: int, divergence: float) -> Course:
        return Course(
            learning_rate=self.learning_rate,
            iterations=iterations,
            smooth=self.tv_weight,
            smooth_end=self.tv_weight,
            seams=divergence,
            give_up=self.give_up,
        )

    def _prior(
        self,
        target: FeatureTarget,
        image_shape: tuple[int, int, int],
        device: torch.device,
    ) -> StyleGenerator | None:
        """The generator, tried once in an audit; None: none was handed over."""
        given = target.priors.get(PRIOR)
        if given is None:
            return None
        key = f"generator: {given if isinstance(given, str) else id(given)}"
        known = target.memory.get(key)
        if not isinstance(known, StyleGenerator):
            known = generator_from(given, image_shape, device)
            target.memory[key] = known
        return known
