"""Labels of the audit: given, or the model's own argmax, checked before any step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privaudit._sample import Sample
from privaudit.errors import ConfigError
from privaudit.exposure import GradientExposure
from privaudit.inventory import Finding
from privaudit.inventory.findings import labels_from_model
from privaudit.types import Batch

AT_ONCE = 16
"""Images in one forward pass, so that many images need no more memory than few."""

Source = Literal["given", "model's own argmax", "none"]


@dataclass(frozen=True, eq=False)
class Labels:
    """All labels of the sample, and where they come from."""

    values: Tensor | None
    source: Source

    def rows(self, start: int, stop: int, device: torch.device) -> Tensor | None:
        """The labels of some images."""
        return None if self.values is None else self.values[start:stop].to(device)

    def class_id(self, index: int) -> int | None:
        """The class of one image; None for soft labels and regression."""
        if self.values is None or self.values.is_floating_point():
            return None
        value = self.values[index]
        return int(value) if value.numel() == 1 else None

    def findings(self) -> list[Finding]:
        """What is worth saying about them."""
        return [labels_from_model()] if self.source == "model's own argmax" else []


def settle(
    model: nn.Module, exposure: GradientExposure, sample: Sample, output: Any
) -> Labels:
    """Check the given labels, or take the model's own.

    Raises:
        ConfigError: A label that the model has no class for.
    """
    if sample.labels is not None:
        labels = sample.labels
        if exposure.is_classification:
            labels = checked(labels, exposure.logits(model, output))
        return Labels(labels, "given")
    if exposure.training_step is not None:
        return Labels(None, "none")
    found = [exposure.logits(model, output).detach().argmax(1).cpu()]
    for start in range(AT_ONCE, len(sample.images), AT_ONCE):
        images = sample.images[start : start + AT_ONCE]
        device = next(model.parameters()).device
        batch = Batch(images.to(device), None)
        result, _ = exposure.census(model, batch, train=False)
        found.append(exposure.logits(model, result).argmax(1).cpu())
    return Labels(torch.cat(found), "model's own argmax")


def require_readable(labels: Labels, knowledge: str) -> None:
    """Probabilities cannot be read off as class ids.

    Raises:
        ConfigError: The attacker is to infer soft labels.
    """
    values = labels.values
    if knowledge == "inferred" and values is not None and values.is_floating_point():
        raise ConfigError(
            "Knowledge.labels",
            expected='"known" or "joint", since the labels are no class ids',
            got='"inferred"',
            hint='"known" is the worst case; "joint" optimises probabilities.',
        )


def checked(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels that the model has classes for; anything else is a ConfigError."""
    classes = logits.shape[1]
    if labels.is_floating_point():
        if labels.shape[1:] != logits.shape[1:]:
            raise _shape_error(labels, logits)
        return labels
    labels = labels.long()
    if labels.dim() == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape[1:] != logits.shape[2:]:
        raise _shape_error(labels, logits)
    outside = ((labels < 0) | (labels >= classes)) & (labels != -100)
    if bool(outside.any()):
        index = int(outside.flatten().nonzero()[0])
        raise ConfigError(
            f"label at index {index}",
            expected=f"a class id from 0 to {classes - 1} (the model has {classes})",
            got=str(int(labels.flatten()[index])),
            hint="Check the label encoding of this model.",
        )
    if bool((labels == -100).all()):
        raise ConfigError(
            "labels",
            expected="at least one label that is not ignored (-100)",
            got="all -100",
            hint="A step on ignored labels has no gradient.",
        )
    return labels


def _shape_error(labels: Tensor, logits: Tensor) -> ConfigError:
    ids = ("images", *map(str, logits.shape[2:]))
    return ConfigError(
        "labels",
        expected=f"integer class ids of shape ({', '.join(ids)}), or probabilities of "
        f"shape (images, {', '.join(map(str, logits.shape[1:]))})",
        got=f"{str(labels.dtype).removeprefix('torch.')} of shape "
        f"{tuple(labels.shape)}",
        hint="Class ids: labels.long(); one-hot: labels.argmax(1). Other targets need "
        "loss=.",
    )
