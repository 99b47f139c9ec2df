"""Draws: one random event each, and the tape that holds them in call order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from privaudit.inventory.records import StochasticCall


@dataclass(frozen=True, eq=False)
class Draw:
    """One random event of a forward pass.

    Attributes:
        path: Dotted path of the module that made the call; the class name for the
            model itself.
        call: Which stochastic call of that module, from 0.
        kind: ``dropout``, ``attention-prob dropout``, ``drop path``, ``noise: ...``.
        value: The mask (1 keeps, 0 drops) or the noise, as drawn; None where
            nothing is drawn (p = 0 or p = 1).
        p: Probability of dropping; None for noise.
        hidden: Seen only below autograd; no function-level handler owns it.
        replayable: False where putting the value back is not exact.
        step: Which local step of the client made it, from 0.
    """

    path: str
    call: int
    kind: str
    value: Tensor | None
    p: float | None = None
    hidden: bool = False
    replayable: bool = True
    step: int = 0

    @property
    def name(self) -> str:
        """The call as users write it, such as ``encoder.dropout#0``."""
        later = f" in step {self.step + 1}" if self.step else ""
        return f"{self.path}#{self.call}{later}"

    @property
    def is_mask(self) -> bool:
        """True for everything that drops, False for noise."""
        return self.p is not None

    @property
    def active(self) -> bool:
        """True when something random happens: p = 0 changes nothing."""
        return self.p is None or self.p > 0

    def record(self, *, in_eval: bool = False) -> StochasticCall:
        """This draw without its tensor."""
        return StochasticCall(
            path=self.path,
            call=self.call,
            kind=self.kind,
            p=self.p,
            shape=[] if self.value is None else list(self.value.shape),
            active=self.active,
            hidden=self.hidden,
            replayable=self.replayable,
            in_eval=in_eval,
        )


@dataclass(frozen=True, eq=False)
class Tape:
    """All draws of one forward pass, or of a client's passes in turn, in call order."""

    draws: tuple[Draw, ...] = ()

    def __iter__(self) -> Iterator[Draw]:
        return iter(self.draws)

    def __len__(self) -> int:
        return len(self.draws)

    def __getitem__(self, name: str) -> Draw:
        """The draw called ``path#call``."""
        for draw in self.draws:
            if draw.name == name:
                return draw
        raise KeyError(name)

    @property
    def active(self) -> tuple[Draw, ...]:
        """Draws where something random happened."""
        return tuple(d for d in self.draws if d.active)

    @property
    def hidden(self) -> tuple[Draw, ...]:
        """Draws that only the census saw."""
        return tuple(d for d in self.draws if d.hidden)

    def select(self, row: int, *, batch_size: int) -> Tape:
        """The tape of sample ``row`` alone, for values that lead with the batch."""
        return Tape(tuple(_row(d, row, batch_size) for d in self.draws))

    @classmethod
    def of_steps(cls, tapes: Iterable[Tape]) -> Tape:
        """One tape of the forward passes of a client's local steps."""
        return cls(
            tuple(replace(d, step=n) for n, tape in enumerate(tapes) for d in tape)
        )

    @property
    def first_step(self) -> Tape:
        """The draws of the first local step: the others repeat its calls."""
        return Tape(tuple(d for d in self.draws if d.step == 0))

    def inactive(self) -> Tape:
        """The same calls with nothing left to chance."""
        masks = [replace(d, value=None, p=0.0) for d in self.draws]
        return Tape(tuple(masks))

    def detached(self) -> Tape:
        """The same values without their graph."""
        values = [None if d.value is None else d.value.detach() for d in self.draws]
        return self.with_values(values)

    def with_values(self, values: Iterable[Tensor | None]) -> Tape:
        """The same calls with other masks or noise."""
        paired = zip(self.draws, values, strict=True)
        return Tape(tuple(replace(d, value=v) for d, v in paired))


def _row(draw: Draw, row: int, batch_size: int) -> Draw:
    value = draw.value
    if value is None or value.dim() == 0 or value.shape[0] != batch_size:
        return draw
    return replace(draw, value=value[row : row + 1])
