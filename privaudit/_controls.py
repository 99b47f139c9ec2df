"""Positive control: the same ladder on a case that it must solve."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit._runner import Client, Clock, run
from privaudit._samples import crops, load
from privaudit.attacks import Attack
from privaudit.config import Budget
from privaudit.errors import PrivauditError
from privaudit.exposure import GradientExposure
from privaudit.metrics import Mse, Ssim
from privaudit.result import PositiveControl
from privaudit.types import AttackerKnowledge, Batch, Target

MIN_SSIM = 0.9
MAX_MSE = 1e-3
"""Stands in where images are too small for SSIM."""
SHARE = 0.1
"""At most this share of the audit's budget."""


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
    """Attack the user's model without dropout; where that says nothing, a built-in one.

    Args:
        attacks: The ones that the audit uses.
        target: The user's model and exposure.
        client: Gives the shape, and a label that the loss takes.
        budget: The audit's; a tenth of its seconds may be spent here.
        seed: Of the built-in model.
    """
    started = time.monotonic()
    seconds = None if budget.seconds is None else budget.seconds * SHARE
    clock = Clock(budget.model_copy(update={"seconds": seconds}))
    own = _solved(attacks, target, client, clock, name="the model without dropout")
    if own.passed:
        return own
    shape = client.step.observation.image_shape
    device = client.batch.images.device
    stand_in = Target(
        _built_in(shape, seed).to(device),
        GradientExposure(Normalisation()),
        AttackerKnowledge(),
    )
    other = _solved(attacks, stand_in, client, clock, name="a built-in linear model")
    seconds_spent = time.monotonic() - started
    detail = f"{other.detail} (on {own.model}: {own.detail})"
    return other.model_copy(update={"seconds": seconds_spent, "detail": detail})


def _solved(
    attacks: Sequence[Attack],
    target: Target,
    client: Client,
    clock: Clock,
    *,
    name: str,
) -> PositiveControl:
    started = time.monotonic()
    shape = client.step.observation.image_shape
    image = shipped_images(1, shape).to(client.batch.images)
    label = client.batch.labels
    if target.exposure.is_classification:
        label = torch.zeros(1, dtype=torch.long, device=image.device)
    elif label is not None:
        label = label[:1]
    batch = Batch(image, label)
    best: float | None = None
    passed, detail = False, "no attack applied"
    try:
        bare = replace(target.exposure, dropout=False)
        step = bare.observe(target.model, batch, seed=0)
        aimed = Target(target.model, bare, target.knowledge)
        subject = Client(batch, step, range(1))
        for attack in attacks:
            ran = run(attack, aimed, [subject], labels_known=True, clock=clock, seed=0)
            guess = ran.outcomes[0].images
            if guess is None:
                detail = f"{attack.name}: {ran.reason or ran.state}"
                continue
            score, good = _score(image, guess)
            detail = f"{attack.name}: {ran.state}"
            best = score if best is None else max(best, score or best)
            passed = passed or good
    except PrivauditError as error:
        detail = str(error)
    return PositiveControl(
        passed=passed,
        model=name,
        ssim=best,
        limit=MIN_SSIM,
        seconds=time.monotonic() - started,
        detail=detail,
    )


def _score(truth: Tensor, guess: Tensor) -> tuple[float | None, bool]:
    ssim = Ssim().score(truth.cpu(), guess.detach().cpu())[0].value
    if ssim is not None:
        return ssim, ssim >= MIN_SSIM
    mse = Mse().score(truth.cpu(), guess.detach().cpu())[0].value
    return None, mse is not None and mse <= MAX_MSE


def _built_in(shape: tuple[int, int, int], seed: int) -> nn.Module:
    """Two linear layers on the same input, drawn from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    values = shape[0] * shape[1] * shape[2]
    model = nn.Sequential(nn.Flatten(), nn.Linear(values, 16), nn.GELU())
    model.append(nn.Linear(16, 10))
    with torch.no_grad():
        for p in model.parameters():
            draw = torch.randn(p.shape, generator=generator)
            p.copy_(draw / p.shape[-1] ** 0.5)
    return model
