"""Inverse network: a decoder that learnt to undo the client on public images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import nn

from privaudit.attacks import _feature_loss
from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._feature_loss import require_features
from privaudit.attacks._inverse_file import load
from privaudit.attacks._inverse_training import (
    HOW_TO_GIVE,
    Trained,
    train,
)
from privaudit.attacks._polish import Polish, polished, share_for_polish
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.errors import ConfigError
from privaudit.types import AttackState, Reconstruction, Search

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureObservation, FeatureTarget

PRIOR = "inverse_network"
"""Its name among the priors that a user hands over."""
DISTANCE = "mean_squared_error"
"""In which features are compared, also while images are polished."""


class InverseNetwork(FeatureAttack):
    """Images by one pass of a network that was trained to undo the client.

    Trained on public images and what the client makes of them, by mean squared error;
    or handed over as ``priors={"inverse_network": path or module}``.
    Source: He 2019; decoder and training as Lei 2025, section 4.4 and table 10; differs
    in sizes that train on a CPU. The paper's: ``InverseNetwork(width=512, layers=4,
    iterations=100_000, batch_size=256, warm_up=0.05, mask_share=0.25)``.
    """

    name: ClassVar[str] = "inverse_network"
    title: ClassVar[str] = "Inverse network"
    source: ClassVar[str] = "He 2019"
    reads_priors: ClassVar[frozenset[str]] = frozenset({PRIOR})

    width: int = Field(default=128, ge=8, multiple_of=8)
    """Channels inside."""
    layers: int = Field(default=3, ge=1)
    """Transformer blocks for tokens, residual blocks for maps."""
    iterations: int = Field(default=1500, ge=1)
    """Of training, at most."""
    batch_size: int = Field(default=32, ge=1)
    """Public images a step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Of AdamW, after the warm-up; then a cosine."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Of AdamW."""
    warm_up: float = Field(default=0.05, ge=0, lt=1)
    """Share of the training in which steps grow."""
    mask_share: float = Field(default=0.0, ge=0, lt=1)
    """r_mask: patch tokens that a [MASK] token replaces while training."""
    flip: bool = True
    """Also train on mirrored images."""
    polish: int = Field(default=0, ge=0)
    """Iterations of free pixels afterwards; 0: none."""

    @classmethod
    def tiny(cls) -> InverseNetwork:
        """A small network, and a few steps."""
        return cls(width=32, layers=1, iterations=60, batch_size=8)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        require_features(observation)
        own, rest = share_for_polish(budget, self.polish)
        trained = self._network(target, observation, own, generator)
        if isinstance(trained, str):
            reason = trained
            return [Reconstruction(None, "skipped", reason)] * len(observation)
        found = _answers(target, observation, trained)
        if not self.polish:
            return found
        how = Polish(steps=self.polish, distance=DISTANCE)
        return polished(target, observation, found, how=how, budget=rest)

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """See :class:`~privaudit.attacks.FeatureAttack`."""
        return _feature_loss.loss_at(target, observation, images, DISTANCE)

    def _network(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        budget: Budget,
        generator: torch.Generator,
    ) -> Trained | str:
        """Handed over, trained before in this audit, trained now; or why there is none.

        One that was handed over learnt from features as they are: where countermeasures
        read them in another way, one is trained.
        """
        given = target.priors.get(PRIOR)
        if given is not None and target.exposure.reads:
            given = None
        if isinstance(given, nn.Module):
            return Trained(given, 0, 0, float("nan"))
        if isinstance(given, (str, Path)):
            return load(given, target, observation.image_shape)
        if given is not None:
            raise ConfigError(
                f"priors[{PRIOR!r}]",
                expected="a path, or a module from features to images in [0, 1]",
                got=type(given).__name__,
                hint="Give what `train` saved, or a torch.nn.Module.",
            )
        if target.public is None or not len(target.public):
            return _missing(target)
        _require_size(target.public, observation)
        key = f"{PRIOR}: {self.model_dump_json(exclude={'polish'})}"
        known = target.memory.get(key)
        if not isinstance(known, Trained):
            known = train(target, self, budget=budget, generator=generator)
            target.memory[key] = known
        return known


def _missing(target: FeatureTarget) -> str:
    if target.priors.get(PRIOR) is not None and target.exposure.reads:
        return (
            "the network that was handed over takes features as they are sent, but a "
            'countermeasure changes them. Pass priors={"public_images": images} too.'
        )
    return f"no public images, and no trained network. {HOW_TO_GIVE}"


def _require_size(public: Tensor, observation: FeatureObservation) -> None:
    if tuple(public.shape[1:]) != observation.image_shape:
        raise ConfigError(
            "public images",
            expected=f"shape (count, {', '.join(map(str, observation.image_shape))})",
            got=str(tuple(public.shape)),
            hint="Give images of the size that the model takes.",
        )


def _answers(
    target: FeatureTarget, observation: FeatureObservation, trained: Trained
) -> list[Reconstruction]:
    """What the network draws, one answer an image."""
    with torch.no_grad():
        drawn = [trained.network(f) for f in torch.split(observation.features, 16)]
    images = _checked(torch.cat(drawn), observation)
    grey = torch.full_like(images, 0.5)
    start = _feature_loss.loss_at(target, observation, grey, DISTANCE)
    final = _feature_loss.loss_at(target, observation, images, DISTANCE)
    state, reason = _state(trained)
    notes = (*_notes(trained), *_unreached(target))
    return [
        Reconstruction(
            images[i : i + 1].clone(),
            state,
            reason,
            form="learnt inverse",
            notes=notes,
            search=Search(start[i], final[i], 0, 1, 0, path="one pass of a network"),
        )
        for i in range(len(observation))
    ]


def _state(trained: Trained) -> tuple[AttackState, str]:
    if trained.ended == INTERRUPTED:
        return "stopped", INTERRUPTED
    if trained.ended:
        return "stopped", f"training was cut short: {trained.ended}"
    return "plateau", "one pass of a network; nothing was searched"


def _notes(trained: Trained) -> Sequence[str]:
    if not trained.images:
        return (
            "the network was handed over as a module; how it was trained is not known",
        )
    return (
        f"trained on {trained.images} public images for {trained.iterations} "
        f"iterations to a mean squared error of {trained.error:.4f}",
    )


def _unreached(target: FeatureTarget) -> Sequence[str]:
    """What countermeasures do that a network knows nothing of which was handed over."""
    given = target.priors.get(PRIOR) is not None and not target.exposure.reads
    if given and (target.corruptions or target.comparisons):
        return (
            "the network was not trained on features as a defense sends them: "
            "countermeasures do not reach it",
        )
    return ()


def _checked(images: Tensor, observation: FeatureObservation) -> Tensor:
    expected = (len(observation), *observation.image_shape)
    if tuple(images.shape) != expected or not bool(images.isfinite().all()):
        raise ConfigError(
            f"priors[{PRIOR!r}]",
            expected=f"finite images of shape {expected}",
            got=f"shape {tuple(images.shape)}"
            + ("" if bool(images.isfinite().all()) else ", not all finite"),
            hint="The module must take features as they are sent and give images in "
            "[0, 1].",
        )
    return images.float().clamp(0, 1)
