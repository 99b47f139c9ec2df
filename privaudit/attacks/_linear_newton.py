"""Gauss-Newton on the features: least squares of one tangent after the other.

For an affine map one tangent is the map itself. For rectifiers it is exact on the piece
that it belongs to. Nothing is materialised: conjugate gradients see the model through
its derivatives in both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit._progress import tick
from privaudit.attacks._linear_krylov import conjugate
from privaudit.attacks._linear_map import ImageMap, Tangent, sizes
from privaudit.attacks._linear_prior import QuadraticPrior

_MATCHED = 1e-6
"""Relative error below which float32 features say no more."""
_STIFF, _SOFTER, _SOFTEST = 1e-2, 0.1, 1e-9
"""Share of the smoothness: at first, from step to step, at last."""
_FALLS = 0.9
_HALVINGS = 4
_PATIENCE = 2
_TRIAL = 3
_FAR = 0.3
"""A map is given up as too far from affine when after the trial steps more than this
share of the error is left."""
_PROBE_STEPS = 150
_ENOUGH = 1e-3


@dataclass(frozen=True, eq=False)
class Newton:
    """Where the steps ended.

    Attributes:
        images: (batch, channels, height, width), not yet in [0, 1].
        curve: (steps + 1, batch): squared relative error of the features.
        products: How many derivatives along a direction this took.
        in_time: False where the budget ended it.
    """

    images: Tensor
    curve: Tensor
    products: int
    in_time: bool


@dataclass
class Effort:
    """What may be spent, and what was.

    Attributes:
        outer: Tangents at most.
        inner: Conjugate-gradient steps per tangent at most.
        spend: Asked before each of these; False ends all.
        products: Spent so far.
        in_time: False once ``spend`` has refused.
    """

    outer: int
    inner: int
    spend: Callable[[], bool] = lambda: True
    products: int = 0
    in_time: bool = True

    def go_on(self) -> bool:
        """Count one more, if it may be spent."""
        self.in_time = self.in_time and self.spend()
        self.products += self.in_time
        return self.in_time


def gauss_newton(
    image_map: ImageMap, features: Tensor, start: Tensor, effort: Effort
) -> Newton:
    """Match ``features`` from ``start``, smoothness fading from step to step.

    Every image rests by itself: once it is matched, gains no more, or turns out to be
    behind a map too far from affine.
    """
    images, share = start.clone(), _STIFF
    errors = [relative_error(image_map(images), features)]
    idle = torch.zeros_like(errors[0])
    while len(errors) <= effort.outer and effort.in_time:
        rows = (_is_worth_it(errors) & (idle < _PATIENCE)).nonzero().flatten()
        if not len(rows):
            break
        change = _change(image_map.near(images[rows]), features[rows], share, effort)
        images[rows], error = _best_of(image_map, features[rows], images[rows], change)
        errors.append(errors[-1].index_copy(0, rows, error))
        idle = torch.where(errors[-1] < _FALLS * errors[-2], 0, idle + 1)
        share = max(share * _SOFTER, _SOFTEST)
        tick(len(errors) - 1, effort.outer, float(errors[-1].mean()))
    return Newton(images, torch.stack(errors), effort.products, effort.in_time)


def relative_error(made: Tensor, features: Tensor) -> Tensor:
    """(batch,): squared error as a share of the squared features."""
    size = sizes(features).square().clamp_min(1e-30)
    return sizes(made - features).square() / size


def _is_worth_it(errors: list[Tensor]) -> Tensor:
    open_still = errors[-1] >= _MATCHED**2
    if len(errors) <= _TRIAL:
        return open_still
    return open_still & (errors[_TRIAL] <= _FAR * errors[0])


def _change(tangent: Tangent, features: Tensor, share: float, effort: Effort) -> Tensor:
    """The step to the least squares of this tangent."""
    images = tangent.images.detach()
    prior = QuadraticPrior.at(images)
    weight = share * _relative_stiffness(tangent, prior)

    def curve(direction: Tensor) -> Tensor:
        matched = tangent.backward(tangent.forward(direction))
        return matched + weight * prior.curve(direction)

    pull = tangent.backward(features - tangent.value) - weight * prior.pull(images)
    return conjugate(
        curve, pull, steps=effort.inner, enough=_ENOUGH, go_on=effort.go_on
    )


def _relative_stiffness(tangent: Tangent, prior: QuadraticPrior) -> Tensor:
    """How much a pixel moves features, per how much it moves differences."""
    images = tangent.images.detach()
    signs = torch.randint(
        2, images.shape[1:], generator=torch.Generator().manual_seed(0)
    )
    noise = (2.0 * signs - 1).to(images).expand_as(images)
    moved = sizes(tangent.forward(noise)).square() / images[0].numel()
    return moved.view(-1, 1, 1, 1) / prior.stiffness().mean((1, 2, 3), keepdim=True)


def _best_of(
    image_map: ImageMap, features: Tensor, images: Tensor, change: Tensor
) -> tuple[Tensor, Tensor]:
    """Per image the longest of the halved steps that lowers the error."""
    error = relative_error(image_map(images), features)
    best, length = images.clone(), 1.0
    open_rows = torch.ones_like(error, dtype=torch.bool)
    for _ in range(_HALVINGS):
        tried = images + length * change
        now = relative_error(image_map(tried), features)
        better = open_rows & (now < error)
        best[better], error = tried[better], torch.where(better, now, error)
        open_rows = open_rows & ~better
        if not bool(open_rows.any()):
            break
        length /= 2
    return best, error


def undetermined(
    image_map: ImageMap, images: Tensor, generator: torch.Generator
) -> Tensor:
    """(batch,): share of a random change of the images that the features do not show.

    Conjugate gradients look for a change that explains what the random one does; a
    part that they cannot tell from zero is free.
    """
    tangent = image_map.near(images)
    change = torch.randn(images.shape[1:], generator=generator).to(images)
    change = change.expand_as(images)
    found = conjugate(
        lambda d: tangent.backward(tangent.forward(d)),
        tangent.backward(tangent.forward(change)),
        steps=_PROBE_STEPS,
        enough=1e-6,
    )
    return sizes(change - found) / sizes(change)
