"""Gauss-Newton steps from where a search ended: image and masks together.

First-order search finds most of the masks, then it creeps: where the loss is flat,
images still look wrong. Source: this project (docs/decisions/0015).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privaudit.attacks._equations import Equations, refusal
from privaudit.attacks._kinks import has_kinks
from privaudit.attacks._levenberg import Effort, least_squares
from privaudit.attacks._matching import Matching
from privaudit.attacks._minimise import Descent
from privaudit.config import Budget
from privaudit.tape import Tape

TapeOf = Callable[[Sequence[Tensor]], Tape | None]
Held = Sequence[Tensor | None]

PRODUCTS, _MOST = 300, 1200
"""Steps of conjugate gradients for one tangent, on average and at most: each takes as
long as two iterations of the search."""
_SHARE = 1 / 3
"""Of the seconds, where they are bounded."""
_STIFF = 1.0
"""Damping beyond which it is given up."""
REFINED = "the last {} steps are Gauss-Newton's, on image and masks together"
BESIDE = "{} Gauss-Newton steps from there fit no better by the search's own loss"
UNREFINED = "not refined by Gauss-Newton steps: {}"


@dataclass(frozen=True)
class Refinement:
    """How far the result of a search is refined.

    Attributes:
        steps: Tangents at most; 0: it is left as it is.
        deadline: Of ``time.monotonic``; None: no bound.
        most: Iterations of search and refinement together, each step for as many as it
            takes the time of; None: any number.
    """

    steps: int = 0
    deadline: float | None = None
    most: int | None = None

    def split(self, matching: Matching, budget: Budget) -> tuple[Budget, Refinement]:
        """What the search may spend, and what is done afterwards."""
        if not self.steps or not _applies(matching) or has_kinks(matching):
            return budget, Refinement()
        bound = replace(self, most=budget.iterations)
        if budget.seconds is None:
            return budget, bound
        own = budget.model_copy(update={"seconds": budget.seconds * (1 - _SHARE)})
        return own, replace(bound, deadline=time.monotonic() + budget.seconds)

    def each(self, count: int) -> Refinement:
        """For the first of ``count`` searches that share what time is left."""
        if self.deadline is None:
            return self
        now = time.monotonic()
        return replace(self, deadline=now + (self.deadline - now) / count)

    def __call__(
        self, matching: Matching, tape_of: TapeOf, held: Held, run: Descent
    ) -> Descent:
        """``run``, with where the steps led if the gradient fits better there.

        Where a gradient determines no image, a better fit may be a worse image, and the
        reverse: the image that is not the answer goes with it as another one.

        Args:
            matching: What is matched.
            tape_of: Puts masks into a tape.
            held: Per mask which entries must not move; empty: none.
            run: A search that has ended.
        """
        steps = self.steps
        if self.most is not None:
            steps = min(steps, (self.most - run.iterations) // (2 * PRODUCTS))
        if steps < 1 or run.end in ("interrupted", "numerical"):
            return run
        try:
            return self._refined(matching, tape_of, held, run, steps)
        except Exception as error:  # noqa: BLE001  a model may break in any way
            # Three derivatives deep, and what was found must not be lost to it.
            first = next(iter(str(error).splitlines()), type(error).__name__)
            return replace(run, notes=(*run.notes, UNREFINED.format(first)))

    def _refined(
        self,
        matching: Matching,
        tape_of: TapeOf,
        held: Held,
        run: Descent,
        steps: int,
    ) -> Descent:
        equations = Equations(matching, tape_of)
        effort = Effort(steps, _MOST, steps * PRODUCTS, self.deadline, _STIFF)
        found = least_squares(
            equations, run.best, [None, *(held or [None] * (len(run.best) - 1))],
            goal=equations.goal, effort=effort,
        )  # fmt: skip
        if found.end == "interrupted":
            run = replace(run, end="interrupted")
        moved = [
            found.best[0].clamp(*matching.box(found.best[0])),
            *(m.clamp(0, 1) for m in found.best[1:]),
        ]
        if not found.iterations:
            return run
        before, after = (_loss(matching, tape_of, v) for v in (run.best, moved))
        iterations = run.iterations + found.iterations
        if not after < before:
            # The equations fit better and the search's loss does not: who knows?
            notes = (*run.notes, BESIDE.format(found.iterations))
            return replace(run, other=moved[0], iterations=iterations, notes=notes)
        return replace(
            run, best=moved, loss_best=after, other=run.best[0], iterations=iterations,
            notes=(*run.notes, REFINED.format(found.iterations)),
        )  # fmt: skip


def _applies(matching: Matching) -> bool:
    """False where there are no equations, or noise would be solved for."""
    target = matching.target
    known = matching.labels is not None and not target.noise_share
    plain = not any(term.prior.watches_norms for term in matching.priors)
    return known and plain and not refusal(target)


def _loss(matching: Matching, tape_of: TapeOf, values: Sequence[Tensor]) -> float:
    """Matching loss, as the search has it."""
    with torch.enable_grad():
        guess = matching.guess(values[0], tape_of(values[1:]))
        return float(matching.apart(guess, matching.observed(guess)).detach())
