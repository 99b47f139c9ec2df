"""Who is attacked: what each holds, what it sent, its place among the images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from privaudit.exposure import ClientStep
from privaudit.types import Batch


@dataclass(frozen=True, eq=False)
class Client:
    """One client: what it holds, what it sent, and its place among the images.

    Attributes:
        masks_known: False for a gradient that was recorded without them: the tape of
            its step then only shows which calls draw.
        noise_floor: Relative rounding of its gradient; 0 in full precision.
    """

    batch: Batch
    step: ClientStep
    rows: range
    masks_known: bool = True
    noise_floor: float = 0.0

    def held(self) -> Client:
        """Itself: the step is there."""
        return self


@dataclass(frozen=True, eq=False)
class WaitingClient:
    """A client whose step is made when it is looked at, the same each time.

    The gradients of many clients of a large model do not fit into memory together.
    """

    batch: Batch
    make: Callable[[], ClientStep]
    rows: range
    masks_known: bool = True
    noise_floor: float = 0.0

    @property
    def step(self) -> ClientStep:
        """Made anew at every look."""
        return self.make()

    def held(self) -> Client:
        """The client with its step in hand."""
        return Client(
            self.batch, self.make(), self.rows, self.masks_known, self.noise_floor
        )


AnyClient = Client | WaitingClient


class Subject(Protocol):
    """Whoever is attacked: what it holds, and its place among the images."""

    @property
    def batch(self) -> Batch:
        """What it holds."""
        ...

    @property
    def rows(self) -> range:
        """Where its images are among all."""
        ...
