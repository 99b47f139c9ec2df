"""What a model says about its input, without running it."""

from __future__ import annotations

from typing import Any

from torch import nn

from privaudit.errors import ConfigError

_MANY = 16
"""More channels than images have."""


def expected_channels(model: nn.Module) -> int | None:
    """Channels of the first layer that knows them; None for a linear first layer.

    Modules are listed as they were declared, not as they are called. A convolution on
    many channels that stands before one on few is not the first: then None.
    """
    takes = [m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            first = module.in_channels
            return None if first > _MANY and min(takes) < first else first
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            return None
    return None


def stated_input_shape(model: nn.Module) -> tuple[int, int, int]:
    """(channels, height, width) from the attributes that model families carry.

    Raises:
        ConfigError: The model does not say.
    """
    for source in (_timm, _transformers, _torchvision):
        shape = source(model)
        if shape is not None:
            return shape
    channels = expected_channels(model)
    raise ConfigError(
        "sample",
        expected="images, since the model does not state its input size",
        got="None",
        hint=f"Pass a sample of shape (1, {channels or 'channels'}, height, width).",
    )


def _timm(model: Any) -> tuple[int, int, int] | None:
    for name in ("pretrained_cfg", "default_cfg"):
        config = getattr(model, name, None)
        if isinstance(config, dict) and config.get("input_size"):
            channels, height, width = config["input_size"]
            size = getattr(getattr(model, "patch_embed", None), "img_size", None)
            return (channels, *(size or (height, width)))
    return None


def _transformers(model: Any) -> tuple[int, int, int] | None:
    config = getattr(model, "config", None)
    size = getattr(config, "image_size", None)
    if isinstance(size, int):
        return (getattr(config, "num_channels", 3), size, size)
    return None


def _torchvision(model: Any) -> tuple[int, int, int] | None:
    if not type(model).__module__.startswith("torchvision.models"):
        return None
    size = getattr(model, "image_size", 224)
    return (expected_channels(model) or 3, size, size)
