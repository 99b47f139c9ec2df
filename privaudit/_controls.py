"""Positive control: the same ladder on a case that it must solve."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from privaudit._align import assignment
from privaudit._pixels import Normalisation
from privaudit._runner import Client, Clock, run
from privaudit._samples import crops, load
from privaudit.attacks import Attack
from privaudit.attacks._matching import USUAL
from privaudit.config import Budget
from privaudit.errors import PrivauditError
from privaudit.exposure import GradientExposure, LocalSteps
from privaudit.metrics import Mse, Ssim
from privaudit.result import PositiveControl
from privaudit.types import AttackerKnowledge, Batch, Target

MIN_SSIM = 0.9
MAX_MSE = 1e-3
"""Stands in where images are too small for SSIM."""
STAND_IN_SIDE = 32
SHARE = 0.1
"""At most this share of the audit's budget."""

STAND_IN_LR = 0.01
"""Highest learning rate of the built-in model, whose gradients are its own."""


def shipped_images(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Up to 64 photographs that belong to nobody's data, (count, C, H, W) in [0, 1].

    Neighbours never show the same scene. Channels other than three are means or
    repetitions of the three.
    """
    channels, height, width = shape
    pictures = load(1, (height, width)) if count == 1 else crops(count, (height, width))
    images = torch.stack([_tensor(p, height, width) for p in pictures])
    if channels == 3:
        return images
    grey = images.mean(1, keepdim=True)
    return grey if channels == 1 else images[:, torch.arange(channels) % 3]


def _tensor(picture: object, height: int, width: int) -> Tensor:
    data = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)  # type: ignore[attr-defined]
    return data.view(height, width, 3).permute(2, 0, 1).float() / 255


def positive_control(
    attacks: Sequence[Attack],
    target: Target,
    client: Client,
    *,
    budget: Budget,
    seed: int,
) -> PositiveControl:
    """Every attack must solve a case: the user's model without dropout, or a built-in.

    A control that one strong attack solves says nothing about a weak one that ran
    beside it, so each attack has to pass by itself.

    Args:
        attacks: The ones that ran in the audit.
        target: The user's model and exposure.
        client: Gives the shape, and a label that the loss takes.
        budget: The audit's; a tenth of its seconds may be spent here.
        seed: Of the built-in model.
    """
    started = time.monotonic()
    clock = Clock(
        budget.model_copy(update={"seconds": (budget.seconds or 600) * SHARE})
    )
    cases = [
        _Case("the model without dropout", target, client.step.observation.image_shape),
    ]
    trials = [
        _first_solved(
            attack,
            [*cases, _stand_in(client, target.exposure.local, seed, attack)],
            client,
            clock.share(len(attacks) - i),
        )
        for i, attack in enumerate(attacks)
    ]
    weakest = min(trials, key=lambda t: (t.solved, t.ssim or 0.0), default=_NOTHING)
    return PositiveControl(
        passed=bool(trials) and all(t.solved for t in trials),
        model=", ".join(dict.fromkeys(t.case for t in trials)) or "none",
        ssim=weakest.ssim,
        limit=MIN_SSIM,
        seconds=time.monotonic() - started,
        detail="; ".join(t.detail for t in trials) or _NOTHING.detail,
    )


@dataclass(frozen=True)
class _Trial:
    """One attack on one control case."""

    case: str
    solved: bool
    ssim: float | None
    detail: str


_NOTHING = _Trial("none", False, None, "no attack applied")


@dataclass(frozen=True, eq=False)
class _Case:
    """A model whose leak is certain, and the images that it takes."""

    name: str
    target: Target
    shape: tuple[int, int, int]


def _stand_in(
    client: Client, local: LocalSteps | None, seed: int, attack: Attack
) -> _Case:
    """A linear model on images of at most 32 pixels: every attack has to solve it.

    Several images need more units, and ReLU's zeros: dropout is off in controls. Its
    client takes as many local steps as the user's, none so long that it diverges.
    """
    images = attack.control_batch * _steps(local)
    if local is not None:
        local = replace(local, lr=min(local.lr, STAND_IN_LR))
    channels, height, width = client.step.observation.image_shape
    shape = (channels, min(height, STAND_IN_SIDE), min(width, STAND_IN_SIDE))
    normal = Normalisation() if images == 1 else USUAL
    target = Target(
        _built_in(shape, seed, images).to(client.batch.images.device),
        GradientExposure(normal, local=local),
        AttackerKnowledge(),
    )
    return _Case("a built-in linear model", target, shape)


def _steps(local: LocalSteps | None) -> int:
    return 1 if local is None else local.count


def _first_solved(
    attack: Attack,
    cases: Sequence[_Case],
    client: Client,
    share: Budget | None,
) -> _Trial:
    """The first case that the attack solves, else the last with all reasons."""
    if share is None:
        return _Trial("none", False, None, f"{attack.name}: no time was left")
    clock = Clock(share)
    told: list[str] = []
    for number, case in enumerate(cases):
        part = clock.share(len(cases) - number)
        if part is None:
            break
        trial = _try(attack, case, client, Clock(part))
        if trial.solved:
            return trial
        told.append(f"{trial.detail} on {case.name}")
    return _Trial(
        cases[-1].name, False, None, "; ".join(told) or f"{attack.name}: no time"
    )


def _try(attack: Attack, case: _Case, client: Client, clock: Clock) -> _Trial:
    name, target = case.name, case.target
    count = attack.control_batch * _steps(target.exposure.local)
    images = shipped_images(count, case.shape).to(client.batch.images)
    label = client.batch.labels
    if target.exposure.is_classification:
        label = torch.zeros(count, dtype=torch.long, device=images.device)
    elif label is not None:
        label = label[:1].repeat(count, *[1] * (label.dim() - 1))
    batch = Batch(images, label)
    try:
        bare = replace(target.exposure, dropout=False)
        step = bare.observe(target.model, batch, seed=0)
    except PrivauditError as error:
        return _Trial(name, False, None, f"{attack.name}: {error}")
    aimed = Target(target.model, bare, target.knowledge)
    subject = Client(batch, step, range(1))
    ran = run(attack, aimed, [subject], labels_known=True, clock=clock, seed=0)
    guess = ran.outcomes[0].images
    if guess is None:
        return _Trial(name, False, None, f"{attack.name}: {ran.reason or ran.state}")
    score, good = _score(images, guess)
    shown = "not defined" if score is None else f"{score:.3f}"
    return _Trial(name, good, score, f"{attack.name}: {ran.state}, SSIM {shown}")


def _score(truth: Tensor, guess: Tensor) -> tuple[float | None, bool]:
    """The worst image's SSIM, and whether all are good enough."""
    guess = guess.detach()[assignment(truth, guess)]
    scores = [s.value for s in Ssim().score(truth.cpu(), guess.cpu())]
    known = [s for s in scores if s is not None]
    if len(known) == len(scores):
        return min(known), min(known) >= MIN_SSIM
    errors = [s.value for s in Mse().score(truth.cpu(), guess.cpu())]
    return None, all(e is not None and e <= MAX_MSE for e in errors)


def _built_in(shape: tuple[int, int, int], seed: int, images: int) -> nn.Module:
    """Two linear layers on the same input, drawn from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    values = shape[0] * shape[1] * shape[2]
    units = 16 if images == 1 else 64 * images
    act = nn.GELU() if images == 1 else nn.ReLU()
    model = nn.Sequential(nn.Flatten(), nn.Linear(values, units), act)
    model.append(nn.Linear(units, 10))
    with torch.no_grad():
        for p in model.parameters():
            draw = torch.randn(p.shape, generator=generator)
            p.copy_(draw / p.shape[-1] ** 0.5)
    return model
