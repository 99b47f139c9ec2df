"""+ what we know about model families, read off the model; no library is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from privaudit._plugin import collect
from privaudit.adapters.base import Adapter as Adapter
from privaudit.adapters.base import LayoutHint as LayoutHint
from privaudit.adapters.base import ModelFacts as ModelFacts
from privaudit.adapters.open_clip import OpenClip as OpenClip
from privaudit.adapters.timm import Timm as Timm
from privaudit.adapters.torchvision import Torchvision as Torchvision
from privaudit.adapters.transformers import Transformers as Transformers
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

ADAPTERS = collect(Adapter, globals())  # type: ignore[type-abstract]


def facts_of(model: nn.Module) -> ModelFacts | None:
    """What is known about ``model``, or about the outermost known part of it."""
    for path, module in model.named_modules():
        for adapter in _of(module):
            facts = adapter.facts(module)
            if facts is not None:
                return facts.inside(path)
    return None


def hint_for(model: nn.Module, path: str) -> LayoutHint | None:
    """What a library says about features at ``path``, outermost part first."""
    names = path.split(".")
    for depth in range(len(names) + 1):
        outer = ".".join(names[:depth])
        try:
            module = model.get_submodule(outer)
        except AttributeError:  # a node of a traced graph is no module
            return None
        for adapter in _of(module):
            hint = adapter.hint(module, ".".join(names[depth:]))
            if hint is not None:
                return hint
    return None


def require_images(model: nn.Module) -> None:
    """Refuse a whole CLIP, which takes text as well.

    Raises:
        ConfigError: With the name of the part that takes images.
    """
    for adapter in _of(model):
        part = adapter.image_part(model)
        if part is not None:
            raise ConfigError(
                "Auditor.model",
                expected="a model of images alone",
                got=f"{type(model).__name__}, which takes images and text",
                hint=f"Pass its image encoder, model.{part}; split names then begin "
                "inside it.",
            )


def _of(module: nn.Module) -> Iterator[Adapter]:
    for family in ADAPTERS.values():
        adapter = family()
        if adapter.recognises(module):
            yield adapter
