"""What metrics on pretrained networks share: which images fit, and what may run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from privaudit._weights import Found, shown
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn


def why_unavailable(name: str, network: Callable[[], nn.Module]) -> str:
    """Why the network cannot be had, and where to put which file; empty if it can."""
    try:
        network()
    except ConfigError as error:
        return f"{name} is not available: {error}"
    return ""


def wrong_channels(name: str, images: Tensor) -> str:
    """Networks on photographs take three channels; only a single one is repeated."""
    channels = images.shape[1]
    return (
        "" if channels in (1, 3) else f"{name} is not defined for {channels} channels"
    )


def grey(images: Tensor) -> str:
    """Says when one channel stands for three."""
    return "grey repeated to three channels" if images.shape[1] == 1 else ""


def three_channels(images: Tensor) -> Tensor:
    """(batch, 1 or 3, height, width) → (batch, 3, height, width)."""
    return images.expand(-1, 3, -1, -1)


def fill(network: nn.Module, state: Mapping[str, Tensor], file: Found) -> None:
    """Load every parameter of ``network``; none may stay random.

    Raises:
        ConfigError: ``state`` lacks one, or has another shape.
    """
    wanted = network.state_dict()
    wrong = [
        name
        for name, value in wanted.items()
        if name not in state or state[name].shape != value.shape
    ]
    if wrong:
        raise ConfigError(
            shown(file.path),
            expected=f"all {len(wanted)} tensors of the network",
            got=f"{len(wrong)} missing or of another shape, first {wrong[0]}",
            hint="It is another network: fetch the file that the documentation names.",
        )
    network.load_state_dict({name: state[name].float() for name in wanted})
