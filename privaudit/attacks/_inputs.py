"""From pixels to the input of the first layer, and back.

Models reshape, cut into patches and normalise before their first layer. All of that
is an affine map ``a = J x + c``, whoever wrote it; so it is found by running it and
inverted by conjugate gradients, and no model needs to be recognised by its name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.tape import Op, StopTrace, Tracer
from privaudit.types import Batch, Target

_AFFINE_TOLERANCE = 1e-4
_ITERATIONS = 60


@dataclass(frozen=True, eq=False)
class InputMap:
    """The affine map from (1, C, H, W) pixels in [0, 1] to the first layer's input."""

    target: Target
    image_shape: tuple[int, int, int]
    labels: Tensor | None

    def __call__(self, images: Tensor) -> Tensor:
        """What the first layer is given for ``images`` (with the graph, if any)."""
        return self.first_op(images).input

    def first_op(self, images: Tensor) -> Op:
        """The first call on a parameter, for ``images``."""
        tracer = Tracer(self.target.model, stop_after=1)
        batch = Batch(images, self.labels)
        with suppress(StopTrace):
            self.target.exposure.trace(self.target.model, batch, tracer)
        return tracer.ops[0]

    def blank(self, value: float = 0.5) -> Tensor:
        """A grey image."""
        device = next(self.target.model.parameters()).device
        return torch.full((1, *self.image_shape), value, device=device)

    def is_affine(self, generator: torch.Generator) -> bool:
        """True when the map adds up: f(a) + f(b) = f(a + b) + f(0)."""
        shape = (1, *self.image_shape)
        a = torch.rand(shape, generator=generator).to(self.blank()) / 2
        b = torch.rand(shape, generator=generator).to(a) / 2
        with torch.no_grad():
            left = self(a) + self(b)
            right = self(a + b) + self(torch.zeros_like(a))
        scale = left.abs().max().clamp_min(1e-12)
        return bool((left - right).abs().max() <= _AFFINE_TOLERANCE * scale)

    def invert(self, first_input: Tensor) -> Tensor:
        """The image whose first-layer input is ``first_input`` (least squares).

        Pixels that the layer never sees stay grey.

        Args:
            first_input: Of the shape that the first layer takes.

        Returns:
            (1, C, H, W), not clamped.
        """
        start = self.blank()
        with torch.no_grad():
            at_start = self(start)
            residual = first_input.to(start) - at_start
        image, goal = start.clone(), float(residual.norm()) * 1e-7
        gradient = self._transposed(residual)
        direction, power = gradient, gradient.square().sum()
        for _ in range(_ITERATIONS):
            if float(residual.norm()) <= goal or float(power) == 0:
                break
            moved = self._along(direction, start, at_start)
            step = power / moved.square().sum().clamp_min(1e-30)
            image = image + step * direction
            residual = residual - step * moved
            gradient = self._transposed(residual)
            new_power = gradient.square().sum()
            direction, power = gradient + new_power / power * direction, new_power
        return image

    def _along(self, direction: Tensor, start: Tensor, at_start: Tensor) -> Tensor:
        """``J direction``, without leaving the pixels' range, where models clamp."""
        length = 0.25 / direction.abs().max().clamp_min(1e-30)
        with torch.no_grad():
            return (self(start + length * direction) - at_start) / length

    def _transposed(self, vector: Tensor) -> Tensor:
        """``Jᵀ vector``."""
        at = self.blank().requires_grad_()
        with torch.enable_grad():
            out = self(at)
            (back,) = torch.autograd.grad(out, at, vector.to(out))
        return back.detach()
