"""The time of an audit, and what an earlier run of the same audit has spent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from privaudit._kept import UNREACHED, Finished, Kept
from privaudit.attacks import Attack
from privaudit.config import Budget
from privaudit.types import Reconstruction


@dataclass
class Clock:
    """The time left of an audit's budget.

    Attributes:
        budget: For the whole audit.
        started: By the monotonic clock.
        cancelled: True after Ctrl-C: nothing more is begun.
        kept: What an earlier run finished; None: it is no audit that is resumed.
        spent: Seconds that the earlier run took for it. They count as well, so that a
            budget bounds an audit however often it is interrupted.
    """

    budget: Budget
    started: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    kept: Kept | None = None
    spent: float = 0.0

    @property
    def left(self) -> float | None:
        """Seconds left; None without a bound."""
        if self.cancelled:
            return 0.0
        if self.budget.seconds is None:
            return None
        gone = time.monotonic() - self.started + self.spent
        return max(0.0, self.budget.seconds - gone)

    @property
    def is_up(self) -> bool:
        """True once nothing is left."""
        return self.left is not None and self.left <= 0.0

    def cancel(self) -> None:
        """No more time, for whatever comes next."""
        self.cancelled = True

    def share(self, parts: int) -> Budget | None:
        """An equal part of what is left; None once nothing is."""
        if self.is_up:
            return None
        seconds = None if self.left is None else max(self.left / parts, 1e-3)
        return self.budget.model_copy(update={"seconds": seconds})

    def recall(self, attack: Attack, number: int) -> Finished | None:
        """What needs no run: finished before, or not to be begun any more.

        The time of what was finished counts as spent.
        """
        found = None if self.kept is None else self.kept.recall(attack, number)
        if found is not None:
            self.spent += found.seconds
        elif self.cancelled:
            return Finished(Reconstruction(None, "stopped", UNREACHED), 0.0)
        return found

    def keep(self, attack: Attack, number: int, finished: Finished) -> None:
        """Keep what was finished now, where the audit can be resumed."""
        if self.kept is not None:
            self.kept.keep(attack, number, finished)
