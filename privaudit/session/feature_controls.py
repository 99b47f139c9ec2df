"""Positive control of split audits: a cut that every attack must see through."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from privaudit._clock import Clock
from privaudit._controls import MIN_SSIM, SHARE, shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import FeatureAttack
from privaudit.config import Budget
from privaudit.exposure import Cut, FeatureExposure
from privaudit.metrics import Ssim
from privaudit.result import PositiveControl
from privaudit.session.feature_runner import Request, run_features
from privaudit.types import Batch, FeatureLayout, FeatureTarget

SIDE = 32
PATCH = 4
WIDTH = 64
NAME = "a built-in layer that loses nothing"
_PUBLIC = 48
"""Shipped crops that the attacker has; further ones are the private images."""


def feature_control(
    attacks: Sequence[FeatureAttack],
    channels: int,
    *,
    budget: Budget,
    seed: int,
    device: torch.device,
    priors: Mapping[str, object],
) -> PositiveControl:
    """Every attack that decided inverts a convolution with orthogonal columns.

    How deep the user's own cut is says nothing about an attack; this layer keeps all
    that goes in, so an attack that fails on it is broken or was too short.

    Args:
        attacks: The ones that ran in the audit.
        channels: Of the user's images.
        budget: The audit's; a tenth of its seconds may be spent here.
        seed: Of the layer.
        device: Where the audit runs.
        priors: What the user handed over; only those that fit any model are used.
    """
    started = time.monotonic()
    clock = Clock(
        budget.model_copy(update={"seconds": (budget.seconds or 600) * SHARE})
    )
    target, request = _case(channels, seed, device)
    trials = []
    for number, attack in enumerate(attacks):
        share = clock.share(len(attacks) - number)
        part = clock if share is None else Clock(share)
        own = {n: p for n, p in priors.items() if n in attack.portable_priors}
        case = FeatureTarget(target.model, target.exposure, target.public, own)
        trials.append(_try(attack, case, request, part, seed))
    weakest = min(trials, key=lambda t: (t.solved, t.ssim or 0.0), default=None)
    return PositiveControl(
        passed=bool(trials) and all(t.solved for t in trials),
        model=NAME if trials else "none",
        ssim=weakest and weakest.ssim,
        limit=MIN_SSIM,
        seconds=time.monotonic() - started,
        detail="; ".join(t.detail for t in trials) or "no attack applied",
    )


@dataclass(frozen=True)
class _Trial:
    solved: bool
    ssim: float | None
    detail: str


def _case(
    channels: int, seed: int, device: torch.device
) -> tuple[FeatureTarget, Request]:
    values = channels * PATCH * PATCH
    width = max(WIDTH, values)
    layer = nn.Conv2d(channels, width, PATCH, PATCH)
    generator = torch.Generator().manual_seed(seed)
    columns, _ = torch.linalg.qr(torch.randn(width, values, generator=generator))
    with torch.no_grad():
        layer.weight.copy_(columns.view_as(layer.weight))
        layer.bias.zero_()  # type: ignore[union-attr]
    model = nn.Sequential(layer, nn.Flatten()).to(device).eval()
    side = SIDE // PATCH
    layout = FeatureLayout("nchw", grid=(side, side), source="built-in")
    normal = Normalisation((0.5,) * channels, (0.25,) * channels)
    exposure = FeatureExposure(normal, Cut("0"), layout)
    images = shipped_images(_PUBLIC + 1, (channels, SIDE, SIDE)).to(device)
    batch = Batch(images[-1:], None)
    request = Request(batch, exposure.observe(model, batch), range(1))
    return FeatureTarget(model, exposure, images[:-1]), request


def _try(
    attack: FeatureAttack,
    target: FeatureTarget,
    request: Request,
    clock: Clock,
    seed: int,
) -> _Trial:
    generator = torch.Generator().manual_seed(seed)
    image = attack.control_image(target, request.observation.image_shape, generator)
    if image is not None:
        batch = Batch(image, None)
        sent = target.exposure.observe(target.model, batch)
        request = Request(batch, sent, range(1))
    ran = run_features(attack, target, [request], clock=clock, seed=seed)
    guess = ran.outcomes[0].images
    if guess is None:
        return _Trial(False, None, f"{attack.name}: {ran.reason or ran.state}")
    truth = request.batch.images.cpu()
    (score,) = Ssim().score(truth, guess.detach().float().cpu().clamp(0, 1))
    solved = score.value is not None and score.value >= MIN_SSIM
    shown = "not defined" if score.value is None else f"{score.value:.3f}"
    return _Trial(solved, score.value, f"{attack.name}: {ran.state}, SSIM {shown}")
