"""What trained defenses share: a copy of the model, batches without end, one loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privaudit._progress import labelled, tick
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.defenses.base import Defense, TrainData

Losses = Mapping[str, Tensor]
"""``total`` is minimised; all are kept for the report."""
History = dict[str, list[tuple[int, float]]]
_LOOKS = 100
"""How often the losses are looked at, at most."""
_SLACK = 1e-3
"""By which pixels may leave [0, 1]: resizing rounds."""


def trainable_copy(model: nn.Module) -> nn.Module:
    """A copy of ``model`` whose weights can be trained; the model is not changed.

    It is in eval mode, so that nothing is drawn from the world's generator and batch
    statistics stay. Where no weight wants a gradient, all get one.
    """
    twin = copy.deepcopy(model).eval()
    weights = [p for p in twin.parameters() if p.is_floating_point()]
    if not any(p.requires_grad for p in weights):
        for weight in weights:
            weight.requires_grad_(True)
    return twin


def as_given(twin: nn.Module, model: nn.Module) -> nn.Module:
    """The trained copy in the modes of ``model``, without what training left on it."""
    wants = {n: p.requires_grad for n, p in model.named_parameters()}
    for name, parameter in twin.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(wants.get(name, True))
    modes = {n: m.training for n, m in model.named_modules()}
    for name, module in twin.named_modules():
        module.training = modes.get(name, model.training)
    return twin


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def endless(
    data: TrainData, device: torch.device, *, least: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images and labels, from the first again after the last.

    Args:
        data: What there is to learn from.
        device: Where batches go.
        least: Images of a batch; smaller ones are left out.

    Raises:
        ConfigError: There are no such batches, or no images in [0, 1].
    """
    first = True
    while True:
        used = 0
        for images, labels in data.batches():
            if first:
                _check_images(images)
                first = False
            if len(images) >= least:
                used += 1
                yield images.to(device), labels.to(device)
        if not used:
            raise ConfigError(
                "train_data.batches",
                expected=f"batches of at least {least} image(s), anew at each call",
                got="none",
                hint="Pass a function that gives them again each time, such as "
                "lambda: loader.",
            )


def _check_images(images: Tensor) -> None:
    fits = images.dim() == 4 and images.is_floating_point()
    if fits and -_SLACK <= float(images.min()) <= float(images.max()) <= 1 + _SLACK:
        return
    seen = f", from {float(images.min()):.2f} to {float(images.max()):.2f}"
    kind = str(images.dtype).removeprefix("torch.")
    raise ConfigError(
        "train_data.batches",
        expected="images of floats in [0, 1], (batch, channels, height, width)",
        got=f"{kind} of shape {tuple(images.shape)}{seen}",
        hint="Leave normalisation out of the loader: it is done behind it, with the "
        "mean and std of the audit.",
    )


@dataclass(eq=False)
class Loop:
    """Trains for some steps and keeps the losses.

    Attributes:
        defense: Its name, for messages.
        steps: How many.
        optimisers: Each clips and moves its own weights.
        clip_norm: Largest norm of one optimiser's gradient.
        prefix: Put before the names of the losses.
    """

    defense: str
    steps: int
    optimisers: Sequence[torch.optim.Optimizer]
    clip_norm: float = 1.0
    prefix: str = ""
    history: History = field(default_factory=dict)

    def run(
        self,
        batches: Iterator[tuple[Tensor, Tensor]],
        losses: Callable[[Tensor, Tensor], Losses],
    ) -> History:
        """Train; the answer is (step, value) of each loss by name.

        Raises:
            ConfigError: A loss, or a weight at the end, is not finite.
        """
        every = max(1, self.steps // _LOOKS)
        with torch.enable_grad(), labelled(f"defense {self.defense}"):
            for step in range(self.steps):
                found = losses(*next(batches))
                if step % every == 0 or step + 1 == self.steps:
                    self._look(step, found)
                self._move(found["total"])
        if not all(bool(w.isfinite().all()) for o in self.optimisers for w in _of(o)):
            raise self._diverged("weights", math.nan, self.steps)
        return self.history

    def _move(self, total: Tensor) -> None:
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        for optimiser in self.optimisers:
            nn.utils.clip_grad_norm_(_of(optimiser), self.clip_norm)
            optimiser.step()

    def _look(self, step: int, found: Losses) -> None:
        for name, value in found.items():
            number = float(value.detach())
            if not math.isfinite(number):
                raise self._diverged(name, number, step)
            self.history.setdefault(self.prefix + name, []).append((step, number))
        tick(step + 1, self.steps, float(found["total"].detach()))

    def _diverged(self, name: str, value: float, step: int) -> ConfigError:
        return ConfigError(
            f"defense {self.defense}",
            expected="a finite loss",
            got=f"{name} {value} after {step} step(s)",
            hint="Lower learning_rate, and make sure that the loss of train_data is "
            "finite on every batch.",
        )


def _of(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimiser.param_groups for p in group["params"]]


def trained_weights(model: nn.Module) -> list[nn.Parameter]:
    """What is trained of a copy."""
    return [p for p in model.parameters() if p.requires_grad]


def untrained(defense: Defense) -> ConfigError:
    """What to say when it is to act before it was trained."""
    return ConfigError(
        f"defense {defense.name}",
        expected="a defense that was trained on a copy of the model",
        got="one that was not",
        hint="Use compare_defenses(…, train_data=…), or audit the model and the "
        "defense that fit(model, data, exposure=…, generator=…) gives.",
    )
