"""A short federated training, each client's gradient sent through its defenses.

What a defense costs a model that is trained behind it cannot be read off one step. The
server averages what clients send and moves the weights with Adam, which does not mind
at which scale a defense leaves a gradient: clipping and signs compare fairly then.
Source: Reddi 2021 (adaptive federated optimisation, FedAdam).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from privaudit._progress import tick
from privaudit.errors import ConfigError
from privaudit.exposure import GradientExposure, output, shared_parameters
from privaudit.exposure.client_step import defended
from privaudit.types import Batch

if TYPE_CHECKING:
    from privaudit.defenses import Defense

_NORM_BATCHES = 20
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]


class FederatedTraining(BaseModel):
    """How long, and with how many clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: int = Field(default=4, ge=1)
    """Who send a gradient in every round."""
    rounds: int = Field(default=100, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of the server's Adam."""


def trained(
    model: nn.Module,
    batches: Batches,
    defenses: Sequence[Defense],
    *,
    exposure: GradientExposure,
    settings: FederatedTraining,
    seed: int,
) -> nn.Module:
    """A copy of ``model`` after some rounds; in eval mode.

    Every client takes one batch a round. With several local steps it sends the sum of
    their gradients, as ``exposure`` makes it.

    Args:
        model: Where training starts; it is not changed.
        batches: Gives (images in [0, 1], labels) anew each time it is called.
        defenses: In the order in which they act on each client's gradient.
        exposure: How a client makes its gradient.
        settings: Length and number of clients.
        seed: Of masks and of the defenses' draws.

    Raises:
        ConfigError: There are no batches.
        UnsupportedModelError: A step fails, or its gradient is not finite.
    """
    server = copy.deepcopy(model)
    shared = shared_parameters(server)
    optimiser = torch.optim.Adam(list(shared.values()), lr=settings.lr)
    device = next(server.parameters()).device
    stream = _endless(batches)
    for turn in range(settings.rounds):
        total: dict[str, Tensor] = {}
        for client in range(settings.clients):
            images, labels = next(stream)
            batch = Batch(images.to(device), labels.to(device))
            own = seed + turn * settings.clients + client
            step = exposure.observe(server, batch, seed=own)
            step = defended(
                step, defenses, exposure=exposure, model=server, batch=batch, seed=own
            )
            for name, value in step.observation.gradients.items():
                total[name] = total.get(name, torch.zeros_like(value)) + value
        for name, parameter in shared.items():
            sent = total.get(name)
            parameter.grad = None if sent is None else sent / settings.clients
        optimiser.step()
        optimiser.zero_grad()
        tick(turn + 1, settings.rounds, float(step.loss))
    _settle_norms(server, exposure, batches, device)
    return server.eval()


def _settle_norms(
    model: nn.Module, exposure: GradientExposure, batches: Batches, device: torch.device
) -> None:
    """Running statistics of batch norms for the new weights: clients send none."""
    norms = [
        m for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats
    ]  # fmt: skip
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches that follow
    model.train()
    with torch.no_grad():
        for images, _ in itertools.islice(batches(), _NORM_BATCHES):
            output.call(
                model, exposure.normalisation.apply(images.to(device)), exposure.keyword
            )


def _endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    for turn in itertools.count():
        empty = True
        for images, labels in batches():
            empty = False
            yield images, labels
        if empty:
            raise ConfigError(
                "train_data",
                expected="batches of (images in [0, 1], labels)",
                got="nothing" if turn == 0 else "nothing the second time",
                hint="Pass a list or a DataLoader, which can be read again.",
            )
