"""Does an attack's prior know such images? Asked with the truth, after the attacks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from privaudit.attacks._directed_noise import Noise
from privaudit.attacks._guidance import fitted
from privaudit.priors.diffusion import DiffusionModel
from privaudit.priors.diffusion.schedule import add_noise, split
from privaudit.result import AttackRecord
from privaudit.session.stances import FeatureView

ASKED = 300
"""Step at which noise is taken away: half of it is noise, and detail counts."""
MOST = 8
"""Images that are asked about."""


def with_fit(
    records: Sequence[AttackRecord],
    views: Sequence[FeatureView],
    images: Tensor,
    seed: int,
) -> list[AttackRecord]:
    """Each record with how well its prior denoises the private images.

    Args:
        records: Of the attacks.
        views: Their memories hold the priors that were loaded.
        images: (count, C, H, W) in [0, 1], the truth.
        seed: Of the noise.
    """
    kept = [m for view in views for m in view.target.memory.values()]
    models = [m for m in kept if isinstance(m, DiffusionModel)]
    found = []
    for record in records:
        if record.prior is None:
            found.append(record)
            continue
        card = record.prior.card
        model = next((m for m in models if m.card == card), None)
        if model is None:
            found.append(record)
            continue
        value = round(denoising_db(model, images[:MOST], seed), 2)
        prior = record.prior.model_copy(update={"fit_db": value})
        found.append(record.model_copy(update={"prior": prior}))
    return found


def denoising_db(prior: DiffusionModel, images: Tensor, seed: int) -> float:
    """PSNR in dB of x̂₀ from ``images`` at step :data:`ASKED`, mean of squares first.

    What a latent prior loses by encoding counts as well: it cannot draw it either.
    """
    shape = (images.shape[1], images.shape[2], images.shape[3])
    step = min(ASKED, len(prior.alphas) - 1)
    alpha = float(prior.alphas[step])
    with torch.no_grad():
        clean = prior.encode(images * 2 - 1)
        latent = tuple(clean.shape[1:])
        noise = Noise(torch.Generator().manual_seed(seed), len(images), 1)
        noisy = add_noise(clean, alpha, noise.draw(latent, clean))
        times = torch.full((len(images),), step, device=clean.device)
        output = prior.predict(noisy, times).to(noisy.dtype)
        guess = split(noisy, output, alpha, prior.prediction)[0]
        guess = guess.clamp(-1, 1) if prior.clip else guess
        drawn = fitted(prior.decode(guess), shape).clamp(0, 1)
    error = float((drawn - images.to(drawn)).square().mean())
    return -10 * math.log10(max(error, 1e-10))
