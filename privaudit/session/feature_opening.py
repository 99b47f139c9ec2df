"""Opens an audit of split inference: sample read, model cut, features looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation, check_bands, to_range
from privaudit._sample import read_sample
from privaudit._shape import expected_channels, stated_input_shape
from privaudit.config import AuditConfig
from privaudit.errors import ConfigError
from privaudit.exposure.output import input_keyword
from privaudit.inventory import Finding
from privaudit.session.feature_cut import OpenedCut, opened_cut
from privaudit.session.features import FeatureSession
from privaudit.session.stances import UNDEFENDED, Defended


@dataclass(frozen=True, eq=False)
class SentFeatures:
    """Features that were recorded elsewhere.

    Attributes:
        values: (batch, …).
        image_shape: (channels, height, width); None: as the model states.
    """

    values: Tensor
    image_shape: tuple[int, int, int] | None = None


def _checked_values(
    sent: SentFeatures, opened: OpenedCut, name: str, images: int
) -> Tensor:
    """The features, one row an image, as floats."""
    values, made = sent.values, opened.sent
    if values.shape[1:] != made.shape[1:] or not values.is_floating_point():
        raise ConfigError(
            f"attack_features(h), split {name}",
            expected=f"floats of shape (batch, {', '.join(map(str, made.shape[1:]))})",
            got=f"{values.dtype}, {tuple(values.shape)}",
            hint="Name the cut at which they were recorded, and pass one row an image.",
        )
    if len(values) != images:
        raise ConfigError(
            "attack_features(h, truth=…)",
            expected=f"{len(values)} image(s), one a row of h",
            got=f"{images}",
            hint="Pass the images in the order of their features.",
        )
    return values.detach().float()


def open_feature_session(
    model: nn.Module,
    given: Any,
    *,
    config: AuditConfig,
    normalisation: Normalisation,
    notes: Sequence[Finding],
    priors: Mapping[str, object],
    started: float,
    sent: SentFeatures | None = None,
    defended: Defended = UNDEFENDED,
) -> FeatureSession:
    """Read the sample, cut the model, look at what it sends.

    Args:
        model: The whole model.
        given: As for ``Auditor.audit``; None: a shipped photograph.
        config: Of the audit; its split says where.
        normalisation: As the user gave it.
        notes: Findings made before.
        priors: What the attacker has beside the model; ``public_images`` among them.
        started: By the monotonic clock.
        sent: What was recorded elsewhere; None: it is made here.
        defended: What stands in between, and what the attacker does about it.
    """
    if config.client.mode == "train":
        model.eval()  # as deployed; "as_is" leaves the modes as they were given
    truth_known = sent is None or given is not None
    if given is None:
        count = 1 if sent is None else len(sent.values)
        shape = (sent and sent.image_shape) or stated_input_shape(model)
        shipped = shipped_images(min(count, 64), shape)
        shipped = shipped[torch.arange(count) % len(shipped)]
        given = to_range(shipped, config.value_range)
    sample, normalisation = read_sample(
        given,
        normalisation,
        channels=expected_channels(model),
        value_range=config.value_range,
    )
    check_bands(config.shown_bands, sample.images.shape[1])
    keyword = sample.keyword or input_keyword(model)
    if config.split is None:
        raise ConfigError(
            "Auditor.split",
            expected="where the model is cut",
            got="None",
            hint='Name a module, such as split="blocks.6".',
        )
    opened = opened_cut(model, config.split, sample.images, normalisation, keyword)
    values = None
    if sent is not None:
        values = _checked_values(sent, opened, config.split.name, len(sample.images))
    handed = dict(priors)
    public = handed.pop("public_images", None)
    images = None
    if public is not None:
        shown, _ = read_sample(
            public,
            normalisation,
            channels=sample.images.shape[1],
            value_range=config.value_range,
        )
        images = shown.images
    return FeatureSession(
        model,
        opened.exposure,
        sample,
        config,
        opened,
        opened.inventory(notes),
        started,
        images,
        handed,
        values,
        truth_known,
        defended,
    )
