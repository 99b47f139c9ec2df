"""Two plain loops of dropout inversion, with nothing of privaudit's own in them.

Both form every gradient of one victim and differentiate twice. ``careful`` asks for
no gradient that nobody needs, and never waits for a number. ``usual`` is written as
such loops usually are: ``loss.backward()`` fills the gradients of the model's
parameters as well, and ``.item()`` is asked in every iteration.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks._speed_common import CIFAR, RATE, Victims
from privaudit.study.dia_models import Block

Kind = Literal["careful", "usual"]
PATIENCE, SHRINK, GAIN = 800, 0.1, 1e-4


@dataclass(eq=False)
class Masks:
    """The masks of one forward pass, taken in call order."""

    values: Sequence[Tensor] = ()
    at: int = 0

    def take(self) -> Tensor:
        """The next mask, scaled."""
        self.at += 1
        return self.values[self.at - 1] / (1 - RATE)


class Masked(nn.Module):
    """Stands where a dropout layer was."""

    def __init__(self, masks: Masks) -> None:
        super().__init__()
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        """Masked, not drawn."""
        return x * self.masks.take()


def masked_copy(model: nn.Module, masks: Masks) -> nn.Module:
    """The model with masks that are given in the place of all dropout."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(module, name, Masked(masks))
        if isinstance(module, Block):
            module.masks = masks  # type: ignore[assignment]
            module.forward = types.MethodType(_block, module)  # type: ignore[method-assign]
    return model


def _block(self: Any, x: Tensor) -> Tensor:
    q, k, v = (
        t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        for t in self.qkv(self.norm1(x)).chunk(3, -1)
    )
    weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
    mixed = (weights * self.masks.take()) @ v
    x = x + self.drop(self.project(mixed.transpose(1, 2).flatten(2)))
    return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class PlainLoop:
    """Dropout inversion for the first victim: cosine, total variation, mask rates."""

    def __init__(self, victims: Victims, kind: Kind) -> None:
        batch, step = victims.batches[0], victims.steps[0]
        device, start = batch.images.device, torch.Generator().manual_seed(0)
        if batch.labels is None:
            raise SystemExit("victims without labels")
        self.careful, self.labels = kind == "careful", batch.labels
        self.taken = Masks()
        self.model = masked_copy(victims.model, self.taken)
        self.parameters = list(self.model.parameters())
        self.observed = list(step.observation.gradients.values())
        self.inputs = torch.randn(batch.images.shape, generator=start).to(device)
        self.masks = [
            torch.rand(d.value.shape, generator=start).lt(1 - RATE).float().to(device)
            for d in step.tape
        ]
        self.leaves = [v.requires_grad_() for v in (self.inputs, *self.masks)]
        self.optimiser = torch.optim.Adam(self.leaves, lr=0.1)
        self.low = CIFAR.apply(torch.zeros_like(self.inputs)).detach()
        self.high = CIFAR.apply(torch.ones_like(self.inputs)).detach()
        self.norm = self._observed_norm()
        self.best_total = torch.tensor(float("inf"), device=device)
        self.best = self.inputs.detach().clone()
        self.reference, self.since = float("inf"), 0

    def step(self) -> None:
        """One iteration."""
        total = self._loss()
        if self.careful:
            for leaf, g in zip(
                self.leaves, torch.autograd.grad(total, self.leaves), strict=True
            ):
                leaf.grad = g
        else:
            self.model.zero_grad()
            self.optimiser.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
        self._keep(total.detach())
        with torch.no_grad():
            grad = self.inputs.grad
            self.inputs.grad = None if grad is None else grad.sign()
            self.optimiser.step()
            self.inputs.clamp_(self.low, self.high)
            for mask in self.masks:
                mask.clamp_(0, 1)

    def _loss(self) -> Tensor:
        self.taken.values, self.taken.at = self.masks, 0
        loss = F.cross_entropy(self.model(self.inputs), self.labels)
        found = torch.autograd.grad(loss, self.parameters, create_graph=True)
        pairs = list(zip(found, self.observed, strict=True))
        inner = torch.stack([(g * o).sum() for g, o in pairs]).sum()
        own = torch.stack([g.square().sum() for g in found]).sum().sqrt()
        norm = self.norm if self.careful else self._observed_norm()
        across = (self.inputs[..., 1:] - self.inputs[..., :-1]).abs().mean()
        down = (self.inputs[..., 1:, :] - self.inputs[..., :-1, :]).abs().mean()
        rates = torch.stack([(RATE - (1 - m.mean())).abs() for m in self.masks]).sum()
        return 1 - inner / (own * norm) + 1e-5 * (across + down) + 1e-4 * rates

    def _observed_norm(self) -> Tensor:
        return torch.stack([o.square().sum() for o in self.observed]).sum().sqrt()

    def _keep(self, total: Tensor) -> None:
        if self.careful:
            better = total < self.best_total
            self.best_total = torch.where(better, total, self.best_total)
            self.best = torch.where(better, self.inputs.detach(), self.best)
            return
        value = total.item()
        if value < self.best_total:
            self.best_total = total
            self.best = self.inputs.detach().clone()
        gained = value < self.reference * (1 - GAIN)
        self.since = 0 if gained else self.since + 1
        self.reference = value if gained else self.reference
        if self.since >= PATIENCE:
            self.since = 0
            self.optimiser.param_groups[0]["lr"] *= SHRINK
