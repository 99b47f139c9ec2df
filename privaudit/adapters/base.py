"""What an adapter is: what we know about one library's models, without importing it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from privaudit._plugin import Plugin

if TYPE_CHECKING:
    from torch import nn

    from privaudit.config import FeatureKind

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and std of ImageNet, [0, 1] units."""
OPENAI_CLIP = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
"""Mean and std of CLIP's training images (Radford 2021, code)."""
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""[0, 1] to [-1, 1], as Inception did it first."""


@dataclass(frozen=True)
class LayoutHint:
    """What a library says about the axes of features; each is tested against them.

    Attributes:
        kinds: Which layouts are possible.
        prefixes: Possible numbers of tokens before the patches; behind the patch
            embedding itself there are none yet.
        strides: Possible (height, width) of what one position stands for, in pixels.
        source: What this was read from.
    """

    kinds: tuple[FeatureKind, ...]
    prefixes: tuple[int, ...] = ()
    strides: tuple[tuple[int, int], ...] = ()
    source: str = ""


@dataclass(frozen=True)
class ModelFacts:
    """What is known about a model as a whole.

    Attributes:
        family: Library and class.
        mean: Per channel, [0, 1] units, as its weights were trained; None: unknown.
        std: Per channel.
        normalisation_source: What the two were read from.
        patch: (height, width) of a patch in pixels; None where there are no patches.
        prefix_tokens: Class, register and distillation tokens; None for CNNs.
        split_points: Where papers cut this family: label to name.
    """

    family: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    normalisation_source: str = ""
    patch: tuple[int, int] | None = None
    prefix_tokens: int | None = None
    split_points: Mapping[str, str] = field(default_factory=dict)

    def inside(self, path: str) -> ModelFacts:
        """The same for a model that is a part called ``path`` of another one."""
        if not path:
            return self
        points = {k: f"{path}.{v}" for k, v in self.split_points.items()}
        return replace(self, split_points=points)


class Adapter(Plugin):
    """Base of what we know about model libraries."""

    package: ClassVar[str]
    """Top-level name of the library."""

    def recognises(self, module: nn.Module) -> bool:
        """Whether the module's class comes from the library, or is built on one."""
        return any(
            cls.__module__.partition(".")[0] == self.package
            for cls in type(module).__mro__
        )

    @abstractmethod
    def facts(self, model: nn.Module) -> ModelFacts | None:
        """What is known about a whole model; None for parts and unknown classes."""

    @abstractmethod
    def hint(self, model: nn.Module, path: str) -> LayoutHint | None:
        """What the library says about features at ``path`` inside ``model``."""

    def image_part(self, model: nn.Module) -> str | None:
        """Name of the image encoder in a model that also takes text; else None."""
        return None


def class_names(module: nn.Module) -> set[str]:
    """Names of the module's class and of those that it is built on."""
    return {cls.__name__ for cls in type(module).__mro__}


def pair_of(value: object) -> tuple[int, int] | None:
    """A size as (height, width), from an int or two."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return int(value[0]), int(value[1])
    return None


def depths(count: int) -> list[int]:
    """After how many layers DRAG cuts: 0, 3, 6, 9, 12 of 12, in the same shares.

    Source: Lei 2025, section 5.1.
    """
    return sorted({round(count * share / 4) for share in range(5)})


def layer_points(first: str, layers: str, count: int) -> dict[str, str]:
    """Split points of a stack of transformer layers.

    Args:
        first: What puts out the tokens before the first layer.
        layers: Name of a layer, with ``{}`` for its number from 0.
        count: How many there are.
    """
    return {
        f"layer {n}": layers.format(n - 1) if n else first
        for n in depths(count)
        if n or first
    }
