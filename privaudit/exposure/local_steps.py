"""What a client sends that trains before it sends: FedAvg's weight difference.

The steps are taken on stand-ins for the weights, which keep their graph: so the
difference can be differentiated by the images of every step.
Source: McMahan 2017 (FedAvg), Geiping 2020, section 6 (matching it by simulation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from privaudit._guard import copy_buffers
from privaudit.errors import UnsupportedModelError
from privaudit.tape import Recorder, Tape
from privaudit.types import AnyBatch, Batch

if TYPE_CHECKING:
    from privaudit.config import OptimizerName

ADAM_EPS = 1e-8
"""torch's default."""

Gradient = Callable[[Batch], dict[str, Tensor]]


@dataclass(frozen=True)
class LocalSteps:
    """How a client moves its weights before it sends them.

    What is sent counts as (before - after) / lr, as a server computes it. Of one step
    of SGD that is the gradient; of one step of AdamW g / (|g| + ε), nearly its signs;
    of several of SGD the sum of their gradients, each at other weights.

    Attributes:
        count: Steps, each on an equal part of the images in their order.
        lr: Learning rate.
        optimizer: ``sgd`` or ``adamw``; of AdamW one step.
        momentum: Of SGD, zero before the first step.
    """

    count: int = 1
    lr: float = 1.0
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0

    @property
    def weight(self) -> float | None:
        """By how much one mean gradient counts in the sum; None: each differently."""
        return float(self.count) if self.sums_gradients and not self.momentum else None

    @property
    def sums_gradients(self) -> bool:
        """True where the difference is a weighted sum of the steps' gradients."""
        return self.optimizer == "sgd"

    @property
    def words(self) -> str:
        """For reasons and findings."""
        if self.optimizer == "adamw":
            return "one AdamW step shows little but signs"
        return f"{self.count} local steps, each with weights of its own"

    def parts(self, batch: Batch) -> list[Batch]:
        """The images of each step."""
        size = len(batch) // self.count
        return [
            batch.select(slice(i * size, (i + 1) * size)) for i in range(self.count)
        ]

    def moved(
        self,
        model: nn.Module,
        shared: Mapping[str, Tensor],
        batch: Batch,
        gradient: Gradient,
        *,
        create_graph: bool = False,
    ) -> dict[str, Tensor]:
        """(before - after) / lr per parameter, without the rounding of weights.

        Args:
            model: Its weights are swapped for the time of each step.
            shared: Its trainable parameters by name.
            batch: The images of all steps.
            gradient: Of one step, at the weights that the model then has.
            create_graph: True keeps the graph through all steps.
        """
        total: dict[str, Tensor] = {}
        velocity: dict[str, Tensor] = {}
        now: dict[int, Tensor] = {}
        for number, part in enumerate(self.parts(batch)):
            if number:
                copy_buffers(model)
            with swapped(model, now):
                found = gradient(part)
            for name, value in found.items():
                value = self._direction(value)
                if self.momentum and name in velocity:
                    value = value + self.momentum * velocity[name]
                velocity[name] = value
                total[name] = total[name] + value if name in total else value
                after = shared[name] - self.lr * total[name].to(shared[name].dtype)
                now[id(shared[name])] = (
                    after if create_graph else after.detach().requires_grad_()
                )
        return total

    def _direction(self, gradient: Tensor) -> Tensor:
        if self.optimizer == "sgd":
            return gradient
        return gradient / (gradient.abs() + ADAM_EPS)


@contextmanager
def swapped(model: nn.Module, now: Mapping[int, Tensor]) -> Iterator[None]:
    """Other tensors in the place of parameters, tied ones together.

    Args:
        model: Comes back with its own.
        now: By the ``id`` of the parameter.
    """
    places = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in now
    ]
    try:
        for module, name, parameter in places:
            stand_in = cast("nn.Parameter", now[id(parameter)])
            module._parameters[name] = stand_in
        yield
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter


@dataclass(eq=False)
class Passes:
    """The recorders of a client's forward passes, one a step, in turn.

    Attributes:
        make: A recorder that replays a tape; of None one that does not.
        given: The tape of all passes, each takes what it needs; None: no replay.
        made: The recorders until now.
        seen: Loss and logits of each pass, without their graph.
    """

    make: Callable[[Tape | None], Recorder]
    given: Tape | None = None
    made: list[Recorder] = field(default_factory=list)
    seen: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)

    def next(self) -> Recorder:
        """The recorder of the next pass."""
        used = sum(len(r.tape) for r in self.made)
        rest = None if self.given is None else Tape(self.given.draws[used:])
        self.made.append(self.make(rest))
        return self.made[-1]

    def see(self, loss: Tensor, logits: Tensor | None) -> None:
        """Remember what a pass gave."""
        self.seen.append((loss.detach(), None if logits is None else logits.detach()))

    @property
    def tape(self) -> Tape:
        """All draws of all passes."""
        return Tape.of_steps(r.tape for r in self.made)


def images_of(batch: AnyBatch) -> Batch:
    """The batch, which is of images: audits of token ids take one step of SGD.

    Raises:
        UnsupportedModelError: It is of token ids.
    """
    if isinstance(batch, Batch):
        return batch
    raise UnsupportedModelError(
        "Client.local_steps",
        expected="images",
        got="token ids",
        hint="Audits of token ids take one local step of SGD.",
    )


def local_steps(
    count: int, lr: float | None, optimizer: OptimizerName, momentum: float
) -> LocalSteps | None:
    """The steps of a client; None for one of SGD, which sends its gradient."""
    if count == 1 and optimizer == "sgd":
        return None
    return LocalSteps(count, lr or 1.0, optimizer, momentum)
