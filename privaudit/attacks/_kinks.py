"""Whether a model has kinks: where its gradient jumps, no slope leads anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from privaudit.attacks._matching import Matching

_KINKED = {
    "relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "_prelu_kernel", "rrelu",
    "rrelu_with_noise", "threshold", "threshold_", "hardtanh", "hardtanh_",
    "hardsigmoid", "hardsigmoid_", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "max_pool2d", "adaptive_max_pool2d", "fractional_max_pool2d", "abs", "maximum",
}  # fmt: skip
"""Operators with a slope that jumps, by their name below autograd."""


class _Watch(TorchDispatchMode):
    """Remembers whether one of them ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.seen = self.seen or func.overloadpacket.__name__ in _KINKED
        return func(*args, **(kwargs or {}))


def has_kinks(matching: Matching) -> bool:
    """True where a grey image's gradient takes an operator whose slope jumps.

    ELU counts as smooth: at its default its slope has no jump.
    """
    size, shape = matching.observation.batch_size, matching.observation.image_shape
    device = next(iter(matching.observation.gradients.values())).device
    grey = matching.scale.apply(torch.full((size, *shape), 0.5, device=device))
    watch = _Watch()
    with watch:
        matching.guess(grey, None)
    return watch.seen
