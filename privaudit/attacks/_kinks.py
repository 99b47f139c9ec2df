"""Whether a model has kinks: where its gradient jumps, no slope leads anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from privaudit.attacks._matching import Matching

_KINKED = {
    "relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "_prelu_kernel", "rrelu",
    "rrelu_with_noise", "threshold", "threshold_", "hardtanh", "hardtanh_",
    "hardsigmoid", "hardsigmoid_", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "max_pool2d", "adaptive_max_pool2d", "fractional_max_pool2d", "abs", "maximum",
    "minimum", "fmax", "fmin", "hardshrink", "softshrink",
}  # fmt: skip
"""Operators with a slope that jumps, by their name below autograd. Clamps, selections
and maxima of one tensor are left out: they mostly mask, or guard against zero."""
_ELU = {"elu", "elu_"}


class _Watch(TorchDispatchMode):
    """Remembers whether one of them ran."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False
        self._weights = {p.data_ptr() for p in model.parameters()}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        kinked = name in _KINKED or (name in _ELU and _jumps(*args[1:3]))
        self.seen = self.seen or (kinked and self._is_of_the_image(args[0]))
        return func(*args, **(kwargs or {}))

    def _is_of_the_image(self, value: object) -> bool:
        """False for positions, which are counted, and for weights."""
        return (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.data_ptr() not in self._weights
        )


def _jumps(alpha: float = 1.0, scale: float = 1.0) -> bool:
    """Whether the slope of an ELU does: below zero it begins at ``alpha``."""
    return bool(alpha != 1 or scale != 1)


def has_kinks(matching: Matching) -> bool:
    """True where a grey image's gradient takes an operator whose slope jumps.

    A model that cannot be watched counts as smooth: solving it tells.
    """
    size, shape = matching.observation.batch_size, matching.observation.image_shape
    device = next(iter(matching.observation.gradients.values())).device
    grey = matching.scale.apply(torch.full((size, *shape), 0.5, device=device))
    watch = _Watch(matching.target.model)
    try:
        with watch:
            matching.guess(grey, None)
    except Exception:  # noqa: BLE001  a model may break in any way
        return False
    return watch.seen
