"""A search in the latents of a generator of digits, on digits that it has not seen."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit import Auditor
from privaudit._pixels import Normalisation
from privaudit.attacks import Glass
from privaudit.config import Budget
from privaudit.exposure import Cut, FeatureExposure
from privaudit.metrics import Ssim
from privaudit.session.feature_controls import feature_control
from privaudit.types import Batch, FeatureLayout, FeatureTarget
from tests.models.digits_client import MEAN, STD, digits_client
from tests.models.tiny_stylegan import tiny_stylegan
from tests.unit.command import ROOT

DIGITS = Path(
    os.environ.get("PRIVAUDIT_SHARED", ROOT.parent / "shared"), "data/mnist_t10k.npz"
)


def test_an_audit_shows_the_generator() -> None:
    model, images = digits_client(), held_out(2)
    result = Auditor(
        model, split="hidden", mean=MEAN, std=STD, priors={"gan": tiny_stylegan()},
        attacks=[Glass(iterations=60)], budget=Budget(seconds=120),
    ).audit(images)  # fmt: skip
    record = result.attacks["glass"].record
    assert record.prior is not None
    assert record.prior.card.kind == "style generator"
    assert record.prior.unguided is not None


def test_it_finds_what_its_generator_drew_where_features_tell_everything() -> None:
    control = feature_control(
        [Glass(iterations=400, learning_rate=0.05)], 1, budget=Budget(seconds=600),
        seed=0, device=torch.device("cpu"), priors={"gan": tiny_stylegan()},
    )  # fmt: skip
    assert control.passed, control.detail
    assert control.ssim is not None


def held_out(count: int, start: int = 8000) -> Tensor:
    """(count, 1, 28, 28) in [0, 1], digits that no network here has seen."""
    if not DIGITS.is_file():
        pytest.skip("mnist_t10k.npz is not in ../shared/data; set PRIVAUDIT_SHARED")
    with np.load(DIGITS) as arrays:
        images = arrays["images"][start : start + count]
    return torch.from_numpy(images).float()[:, None] / 255


def test_held_out_digits_are_rebuilt_from_64_numbers() -> None:
    images, gan = held_out(8), tiny_stylegan()
    layout, normal = FeatureLayout("vector"), Normalisation(MEAN, STD)
    exposure = FeatureExposure(normal, Cut("hidden"), layout)
    target = FeatureTarget(digits_client(), exposure, None, {"gan": gan})
    observation = exposure.observe(target.model, Batch(images, None))
    attack = Glass(iterations=500, learning_rate=0.05)
    found = attack.run(
        target, observation,
        budget=Budget(seconds=300), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    guess = torch.cat([r.images for r in found if r.images is not None])
    with torch.no_grad():
        z = torch.randn(8, gan.z_dim, generator=torch.Generator().manual_seed(1))
        sample = ((gan(z) + 1) / 2).clamp(0, 1)
    ours, theirs = (attack.loss_at(target, observation, x) for x in (guess, sample))
    assert math.fsum(ours) < 0.1 * math.fsum(theirs)
    ssim = [mean_ssim(images, x) for x in (guess, sample)]
    assert ssim[0] > ssim[1] + 0.1
    originals = torch.cat([images, held_out(42, 9000)])
    nearest = torch.cdist(guess.flatten(1), originals.flatten(1)).argmin(1)
    assert int((nearest == torch.arange(8)).sum()) >= 5


def mean_ssim(truth: Tensor, guess: Tensor) -> float:
    values = [s.value for s in Ssim().score(truth, guess) if s.value is not None]
    return math.fsum(values) / len(values)
