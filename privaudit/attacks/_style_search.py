"""What is searched in a StyleGAN: z and the class first, then the styles w⁺."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from privaudit.attacks._descend import Course, Row, descend
from privaudit.attacks._feature_loss import FeatureLoss, Parts
from privaudit.attacks._feature_search import Part
from privaudit.attacks._generator import StyleGenerator, device_of
from privaudit.config import Budget


@dataclass(eq=False)
class Latents:
    """Images as a function of z, and of logits where the generator knows classes.

    Attributes:
        generator: Draws them.
        size: Height and width of the client's input.
        leaves: z, (rows, z_dim); logits, (rows, classes).
        kept: The values of ``leaves`` by which each row fitted best.
    """

    generator: StyleGenerator
    size: tuple[int, int]
    leaves: Sequence[Tensor]
    kept: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.kept = [leaf.detach().clone() for leaf in self.leaves]
        self.lowest = self.kept[0].new_full((len(self.kept[0]),), float("inf"))

    @classmethod
    def drawn(
        cls,
        generator: StyleGenerator,
        size: tuple[int, int],
        part: Part,
    ) -> Latents:
        """z from a standard normal, the same for all images of one restart."""
        device, rows = device_of(generator.module), len(part.loss.observed)
        shape = (part.restarts, generator.z_dim)
        z = torch.randn(shape, generator=part.generator).to(device)
        leaves = [z.repeat_interleave(rows // part.restarts, 0)]
        if generator.classes:
            leaves.append(z.new_zeros(rows, generator.classes))
        return cls(generator, size, [leaf.requires_grad_() for leaf in leaves])

    def images(self, progress: float) -> Tensor:
        """See :class:`~privaudit.attacks._descend.Guess`."""
        return self.generator.images(self._styles(self.leaves), self.size)

    def see(self, losses: Tensor) -> None:
        """Keep the latents of the rows that fit better than ever before."""
        better = losses < self.lowest
        self.lowest = torch.where(better, losses, self.lowest)
        self.kept = [
            torch.where(better[:, None], leaf.detach(), old)
            for leaf, old in zip(self.leaves, self.kept, strict=True)
        ]

    @torch.no_grad()
    def styles(self) -> Tensor:
        """w⁺ of the latents that fitted best, (rows, layers, width)."""
        return self._styles(self.kept)

    def _styles(self, leaves: Sequence[Tensor]) -> Tensor:
        return self.generator.styles(leaves[0], leaves[1] if leaves[1:] else None)


@dataclass(eq=False)
class Styles:
    """Images as a function of their styles.

    Attributes:
        generator: Draws them.
        size: Height and width of the client's input.
        leaves: w⁺, (rows, layers, width).
    """

    generator: StyleGenerator
    size: tuple[int, int]
    leaves: Sequence[Tensor]

    def images(self, progress: float) -> Tensor:
        """See :class:`~privaudit.attacks._descend.Guess`."""
        return self.generator.images(self.leaves[0], self.size)


@dataclass(frozen=True, eq=False, kw_only=True)
class LatentLoss(FeatureLoss):
    """Matching, and how far z is from what the generator was trained on.

    The divergence takes the place of ``seams``, which images of a generator need not.

    Attributes:
        latents: Told each loss, so that it keeps the best z.
        course: Weights of the parts.
    """

    latents: Latents
    course: Course

    def parts(self, images: Tensor) -> Parts:
        """See :class:`FeatureLoss`."""
        found = super().parts(images)._replace(seams=divergence(self.latents.leaves[0]))
        total = found.matching + self.course.smooth * found.smooth
        self.latents.see((total + self.course.seams * found.seams).detach())
        return found


def divergence(z: Tensor) -> Tensor:
    """KL of a normal with the mean and variance of the numbers in z from N(0, 1).

    ``½ (m² + v − 1 − ln v)``, (rows,), for ``z``, (rows, z_dim); v is the variance of
    the numbers of one row, not of rows.
    Source: Li 2023 names the divergence; this form is that of its public code.
    """
    mean, variance = z.mean(1), z.var(1, unbiased=False) + 1e-10
    return 0.5 * (mean.square() + variance - 1 - variance.log())


def search_styles(
    generator: StyleGenerator,
    part: Part,
    *,
    size: tuple[int, int],
    courses: tuple[Course, Course],
) -> tuple[list[Row], int]:
    """Search z, then w⁺ from where z led.

    Args:
        generator: Draws the images.
        part: Which images.
        size: Height and width of the client's input.
        courses: For z and for w⁺; the budget is shared as their iterations are.
    """
    first, second = courses
    budgets = _shares(part.budget, first.iterations, second.iterations)
    started = time.monotonic()
    latents = Latents.drawn(generator, size, part)
    shown = FeatureLoss.__dataclass_fields__
    given = {name: getattr(part.loss, name) for name in shown}
    loss = LatentLoss(**given, latents=latents, course=first)
    rows = descend(latents, loss, first, budgets[0])
    rest = _rest(budgets, time.monotonic() - started)
    styles = latents.styles().clone().requires_grad_()
    unknowns = styles[0].numel()
    if rest is None or any(r.end == "interrupted" for r in rows):
        return rows, unknowns
    finer = descend(Styles(generator, size, [styles]), part.loss, second, rest)
    return [_joined(*both) for both in zip(rows, finer, strict=True)], unknowns


def _shares(budget: Budget, first: int, second: int) -> tuple[Budget, Budget]:
    """What may be spent on each stage."""
    share = first / (first + second)
    iterations, seconds = budget.iterations, budget.seconds
    own = None if iterations is None else max(1, round(share * iterations))
    left = None if iterations is None or own is None else iterations - own
    return (
        _spent(budget, own, None if seconds is None else share * seconds),
        _spent(budget, left, seconds),
    )


def _spent(budget: Budget, iterations: int | None, seconds: float | None) -> Budget:
    return budget.model_copy(update={"iterations": iterations, "seconds": seconds})


def _rest(budgets: tuple[Budget, Budget], spent: float) -> Budget | None:
    """Of the second stage; None where nothing is left for it."""
    rest = budgets[1]
    if rest.iterations == 0:
        return None
    if rest.seconds is None:
        return rest
    left = rest.seconds - spent
    return _spent(rest, rest.iterations, left) if left > 0 else None


def _joined(first: Row, second: Row) -> Row:
    """Both stages as one run: the second begins with the best image of the first."""
    made = first.iterations
    return replace(
        second,
        loss_start=first.loss_start,
        iterations=made + second.iterations,
        curve=[*first.curve, *((made + at, loss) for at, loss in second.curve)],
        pictures=[
            *first.pictures,
            *((made + at, image) for at, image in second.pictures if at),
        ],
    )
