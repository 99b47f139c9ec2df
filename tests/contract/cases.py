"""The tiny client that contract tests attack, and a way to see all it hands over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit._runner import Client, Clock, run
from privaudit.attacks import Attack
from privaudit.config import Budget
from privaudit.exposure import ClientStep, GradientExposure
from privaudit.types import AttackerKnowledge, Batch, Reconstruction, Target

SHAPE = (3, 12, 12)
BUDGET = Budget(seconds=20, iterations=100, restarts=1)


def leaky() -> nn.Module:
    """A first linear layer with bias, dropout behind it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(SHAPE[0] * SHAPE[1] * SHAPE[2], 24),
            nn.GELU(),
            nn.Dropout(0.5),
            nn.Linear(24, 10),
        )


def silent() -> nn.Module:
    """Nothing reaches the parameters: the whole gradient is zero."""
    model = leaky()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        last = model[4]  # type: ignore[index]
        last.bias[3] = 500.0
    return model


def picture(number: int = 0, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    """One photograph, (1, C, H, W) in [0, 1]."""
    return shipped_images(number + 2, shape)[number : number + 1].clone()


@dataclass(frozen=True, eq=False)
class Case:
    """One client's step, from both sides."""

    model: nn.Module
    batch: Batch
    step: ClientStep
    target: Target

    def attack(self, attack: Attack, seed: int = 0) -> Reconstruction:
        """Run it as the audit does: masks for diagnostic ones only, claims checked."""
        victim = Client(self.batch, self.step, range(1))
        ran = run(
            attack, self.target, [victim],
            labels_known=True, clock=Clock(BUDGET), seed=seed,
        )  # fmt: skip
        return ran.outcomes[0]


def case_of(model: nn.Module, images: Tensor | None = None) -> Case:
    """Make the client's step on one photograph with label 3."""
    images = picture() if images is None else images
    exposure = GradientExposure(Normalisation((0.5,), (0.25,)))
    batch = Batch(images, torch.tensor([3]))
    step = exposure.observe(model, batch, seed=0)
    return Case(
        model, batch, step, Target(model, exposure, AttackerKnowledge(batch.labels))
    )


def tensors(thing: Any, path: str = "", seen: set[int] | None = None) -> Leaves:
    """Every tensor that can be reached from ``thing``, with the way to it.

    Looks into dataclasses, mappings, sequences, modules, plain objects, closures,
    bound methods and the graphs that tensors hang on.
    """
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type(None))):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield path, thing
        yield from _kept_by_autograd(thing.grad_fn, f"{path}.grad_fn", seen)
    for name, part in _parts(thing):
        yield from tensors(part, f"{path}{name}", seen)


Leaves = Iterator[tuple[str, Tensor]]


def _kept_by_autograd(node: Any, path: str, seen: set[int]) -> Leaves:
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    for name in dir(node):
        if name.startswith("_saved_"):
            try:
                kept = getattr(node, name)
            except RuntimeError:  # freed
                continue
            yield from tensors(kept, f"{path}.{name}", seen)
    for index, (following, _) in enumerate(node.next_functions):
        yield from _kept_by_autograd(following, f"{path}[{index}]", seen)


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, (Tensor, type)):
        return
    if isinstance(thing, Mapping):
        yield from ((f"[{k!r}]", v) for k, v in thing.items())
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", v) for i, v in enumerate(thing))
    elif dataclasses.is_dataclass(thing):
        yield from (
            (f".{f.name}", getattr(thing, f.name)) for f in dataclasses.fields(thing)
        )
    elif callable(thing) and not isinstance(thing, nn.Module):
        for cell in getattr(thing, "__closure__", None) or ():
            yield "<closure>", cell.cell_contents
        if hasattr(thing, "__self__"):
            yield "<self>", thing.__self__
    elif hasattr(thing, "__dict__"):
        yield from ((f".{k}", v) for k, v in vars(thing).items())


def shows(tensor: Tensor, secret: Tensor) -> bool:
    """True when ``tensor`` is ``secret``, an affine copy of it, or shares its data."""
    if tensor.untyped_storage().data_ptr() == secret.untyped_storage().data_ptr():
        return True
    if tensor.numel() != secret.numel() or not tensor.is_floating_point():
        return False
    a = tensor.detach().double().flatten()
    b = secret.detach().double().flatten()
    a, b = a - a.mean(), b - b.mean()
    if float(a.norm() * b.norm()) == 0:
        return bool(torch.equal(tensor.detach().flatten(), secret.flatten()))
    return float(torch.dot(a, b).abs() / (a.norm() * b.norm())) > 0.99
