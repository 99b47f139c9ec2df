"""Batches whose gradient has no zeros: search the mixing matrix, not the pixels.

The first layer's inputs are ``A R`` with R the row space of its gradient, which is
exact. So a batch of B has B² unknowns, whatever the size of its images. Only for steps
without dropout: with it the masks would be unknown too, and its zeros say more.
"""

from __future__ import annotations

import time
from contextlib import suppress

import torch
from torch import Tensor

from privaudit.attacks._compared import error_of
from privaudit.attacks._forms import EXACT
from privaudit.attacks._row_scale import images_of
from privaudit.attacks._scene import Scene
from privaudit.attacks._unfold import on_model
from privaudit.exposure.predict import GradientGuess, observed_as, predict
from privaudit.types import Batch

_STARTS = 4
_ROUNDS = 400
_LAST_ROUNDS = 60


def match_mixture(
    scene: Scene,
    rows: Tensor,
    *,
    generator: torch.Generator,
    deadline: float | None,
) -> tuple[Tensor, float]:
    """The images ``A rows`` whose gradient is the observed one, and what is left over.

    L-BFGS on the squared relative error from a few random mixtures, until one
    recomputes the gradient. Labels must be known, in any order.

    Args:
        scene: The observation, of a step that drew nothing.
        rows: (batch, in) basis of the first layer's inputs.
        generator: Of the starts, on the CPU.
        deadline: Of ``time.monotonic``; None: no bound.

    Returns:
        (batch, channels, height, width), and the gradient's relative error.
    """
    basis = torch.linalg.qr(rows.T)[0].T
    zero = images_of(scene, torch.zeros_like(basis[:1]))
    slopes = (images_of(scene, basis) - zero).flatten(1)
    best, least = zero.expand(len(rows), *zero.shape[1:]), float("inf")
    for _ in range(_STARTS):
        if deadline is not None and time.monotonic() > deadline:
            break
        shape = (len(rows), *zero.shape[1:])
        drawn = torch.rand(shape, generator=generator, dtype=zero.dtype)
        mixing = (drawn - zero).flatten(1) @ torch.linalg.pinv(slopes)
        problem = _Problem(scene, zero, slopes)
        # Inner products lose the last digits: then the difference itself.
        for factor, rounds in ((True, _ROUNDS), (False, _LAST_ROUNDS)):
            mixing = problem.solve(mixing, factor=factor, rounds=rounds, until=deadline)
        # Inner products lose the last digits: once more with the difference itself.
        mixing = problem.solve(
            mixing, factor=False, rounds=_LAST_ROUNDS, until=deadline
        )
        images = problem.images(mixing).detach()
        error = problem.error(images)
        if error < least:
            best, least = images, error
        if error < EXACT:
            break
    return best, least


class _Problem:
    """The gradient's error as a function of the mixing matrix."""

    def __init__(self, scene: Scene, zero: Tensor, slopes: Tensor) -> None:
        self._scene, self._zero, self._slopes = scene, zero, slopes

    def images(self, mixing: Tensor) -> Tensor:
        """(batch, channels, height, width), not clamped."""
        moved = mixing @ self._slopes
        return self._zero + moved.view(-1, *self._zero.shape[1:])

    def error(self, images: Tensor) -> float:
        """Relative error of the recomputed gradient."""
        target = self._scene.target
        batch = Batch(on_model(self._scene, images), self._scene.labels)
        guess = target.exposure.gradient(target.model, batch)
        return error_of(target, guess, self._scene.observation.gradients)

    def solve(
        self, start: Tensor, *, factor: bool, rounds: int, until: float | None
    ) -> Tensor:
        """The best mixture that L-BFGS finds from ``start``."""
        mixing = start.detach().clone().requires_grad_()
        observed: list[GradientGuess] = []
        best, kept = [float("inf")], [mixing.detach().clone()]
        optimiser = torch.optim.LBFGS(
            [mixing],
            max_iter=rounds,
            history_size=50,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-12,
            tolerance_change=1e-14,
        )

        def closure() -> Tensor:
            if until is not None and time.monotonic() > until:
                raise TimeoutError
            loss = self._loss(mixing, observed, factor=factor)
            if float(loss.detach()) < best[0]:
                best[0], kept[0] = float(loss.detach()), mixing.detach().clone()
            (mixing.grad,) = torch.autograd.grad(loss, [mixing])
            return loss

        with suppress(TimeoutError):
            optimiser.step(closure)  # type: ignore[no-untyped-call]
        return kept[0]

    def _loss(
        self, mixing: Tensor, observed: list[GradientGuess], *, factor: bool
    ) -> Tensor:
        target, scene = self._scene.target, self._scene
        batch = Batch(on_model(scene, self.images(mixing)), scene.labels)
        guess = predict(target.exposure, target.model, batch, None, factor=factor)
        if not factor:
            parts = [
                (guess.dense[n] - g).square().sum()
                for n, g in scene.observation.gradients.items()
                if n in guess.dense
            ]
            total = [g.square().sum() for g in scene.observation.gradients.values()]
            return (torch.stack(parts).sum() / torch.stack(total).sum()).double()
        if not observed:
            observed.append(observed_as(guess, scene.observation.gradients))
        size = observed[0].square()
        apart = guess.square() - 2 * guess.inner(observed[0]) + size
        return (apart / size).double()
