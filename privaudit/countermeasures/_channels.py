"""What countermeasures on channels share: where channels are, how large they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privaudit._controls import shipped_images

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.countermeasures.base import SeenFeatures
    from privaudit.types import FeatureLayout

REFERENCES = 32


def channel_axis(layout: FeatureLayout) -> int:
    """Of features (batch, …)."""
    return 1 if layout.kind == "nchw" else -1


def across_places(features: Tensor, layout: FeatureLayout) -> tuple[int, ...]:
    """The axes of tokens or positions; none for a vector."""
    channel = channel_axis(layout) % features.dim()
    return tuple(d for d in range(1, features.dim()) if d != channel)


def reference(seen: SeenFeatures) -> Tensor:
    """Features (images, …) of the attacker's own images, without any defense."""
    target, shape = seen.target, seen.observation.image_shape
    images = target.public
    if images is None or not len(images):
        images = shipped_images(REFERENCES, shape)
    images = images[:REFERENCES].to(seen.observation.features.device)
    with torch.no_grad():
        made: Tensor = target.exposure.predict(target.model, images).float()
    return made


def places(features: Tensor, layout: FeatureLayout) -> Tensor:
    """Features (batch, …) without their prefix tokens."""
    return features[:, layout.prefix_tokens :] if layout.kind == "tokens" else features


def mean_sizes(features: Tensor, layout: FeatureLayout) -> Tensor:
    """(channels,): mean absolute value over images and places, prefix tokens left out.

    Values that are zero because a whole token was dropped count as well: they are the
    same share of every channel.
    """
    values = places(features, layout).abs().double()
    return values.mean((0, *across_places(values, layout)))
