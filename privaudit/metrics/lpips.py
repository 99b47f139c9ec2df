"""Learned perceptual distance."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from privaudit._weights import Found, Weights, locate, read_state
from privaudit.metrics._pretrained import (
    fill,
    grey,
    three_channels,
    why_unavailable,
    wrong_channels,
)
from privaudit.metrics.base import Metric

if TYPE_CHECKING:
    from torch import Tensor, nn

Net = Literal["alex", "vgg", "squeeze"]


def _backbone(what: str, name: str, sha256: str) -> Weights:
    url = f"https://download.pytorch.org/models/{name}"
    return Weights(f"{what} (ImageNet)", (name,), url, sha256)


BACKBONES: dict[Net, Weights] = {
    "alex": _backbone(
        "AlexNet",
        "alexnet-owt-7be5be79.pth",
        "7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02",
    ),
    "vgg": _backbone(
        "VGG-16",
        "vgg16-397923af.pth",
        "397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
    ),
    "squeeze": _backbone(
        "SqueezeNet 1.1",
        "squeezenet1_1-b8a52dc0.pth",
        "b8a52dc049b60e4b6ab68ad0df457362afab8b6304b2febdc1650a5dab4d7e7b",
    ),
}
SMALLEST: dict[Net, int] = {"alex": 31, "vgg": 16, "squeeze": 17}
"""Below this side, nothing is left of an image at the last layer."""


class Lpips(Metric):
    """How far apart two images look: 0 identical, about .7 unrelated.

    Differences of unit-normalised features of an ImageNet network, weighted as people
    judge, averaged over positions and summed over layers. The learned weights come
    with torchmetrics, the network does not (see ``docs/how-to/air-gapped.md``).
    Images as they are, without resizing; one channel is repeated to three.

    Args:
        net: The network; the literature's default is ``alex``.
        weights: Folder to look into first; None takes ``PRIVAUDIT_WEIGHTS``.
        verify: Compare the file's SHA-256 with the published one.

    Example:
        >>> import torch
        >>> tiny = torch.zeros(1, 3, 16, 16)
        >>> Lpips().score(tiny, tiny)[0].note
        'lpips is not defined below 31 pixels a side'

    Source: Zhang 2018, eq. 1, version 0.1; torchmetrics' implementation.
    """

    name: ClassVar[str] = "lpips"
    title: ClassVar[str] = "LPIPS"
    bounds: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    lower_is_leakier: ClassVar[bool] = True
    source: ClassVar[str] = "Zhang 2018"

    net: Net = "alex"
    weights: str | None = None
    verify: bool = True

    def measure(self, truth: Tensor, guess: Tensor) -> Tensor:
        """See :class:`~privaudit.metrics.base.Metric`."""
        network = self.network()
        pairs = zip(three_channels(truth), three_channels(guess), strict=True)
        with torch.no_grad():
            values = [network(a[None], b[None], normalize=True) for a, b in pairs]
        return torch.stack([value.flatten()[0] for value in values])

    def undefined(self, truth: Tensor) -> str:
        """Too small, or neither grey nor colour."""
        side = SMALLEST[self.net]
        if min(truth.shape[-2:]) < side:
            return f"lpips is not defined below {side} pixels a side"
        return wrong_channels(self.name, truth)

    def unavailable(self) -> str:
        """Where to put which file, if it is not there."""
        return why_unavailable(self.name, self.network)

    def note(self, truth: Tensor) -> str:
        """Says when grey was repeated."""
        return grey(truth)

    def network(self) -> nn.Module:
        """Backbone and learned weights, in eval mode; built once per file.

        Raises:
            ConfigError: The weights are not there, or are not what they should be.
        """
        weights = BACKBONES[self.net]
        file = locate(weights, self.weights)
        return _build(self.net, file, weights.sha256 if self.verify else "")


@lru_cache(maxsize=3)
def _build(net: Net, file: Found, sha256: str) -> nn.Module:
    from torchmetrics.functional.image.lpips import _LPIPS

    state = read_state(file, sha256)
    # Of torchmetrics only `_LPIPS` takes a backbone that is not fetched: filled here.
    with torch.random.fork_rng(devices=[]):
        network = _LPIPS(pretrained=True, net=net, pnet_rand=True)
    wanted = {
        name: re.sub(r"^(slices\.\d+|slice\d+)\.", "features.", name)
        for name in network.net.state_dict()
    }
    fill(network.net, {k: state[v] for k, v in wanted.items() if v in state}, file)
    return network.eval()
