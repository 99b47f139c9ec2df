"""Noise levels and steps of ours against those of the library diffusers."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from privaudit.priors.diffusion.schedule import (
    Prediction,
    add_noise,
    cosine_alphas,
    ddim_mean,
    noise_again,
    split,
    steps_of,
)

diffusers = pytest.importorskip("diffusers")
SHAPE = (2, 3, 4, 4)
PREDICTIONS: tuple[Prediction, ...] = get_args(Prediction)
RTOL, ATOL = 1e-4, 1e-5
"""Of float32, where x̂₀ is a difference of large numbers at high noise."""


def draws(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SHAPE, generator=generator) for _ in range(count)]


def scheduler(name: str, steps: int, **settings: Any) -> Any:
    made = getattr(diffusers, name)(
        clip_sample=False, timestep_spacing="leading", **settings
    )
    made.set_timesteps(steps)
    return made


def test_the_cosine_schedule() -> None:
    theirs = diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2").alphas_cumprod
    torch.testing.assert_close(cosine_alphas(), theirs, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("steps", [4, 50, 250, 1000])
def test_where_the_network_is_asked(steps: int) -> None:
    theirs = scheduler("DDIMScheduler", steps)
    ours = steps_of(theirs.alphas_cumprod, steps)
    assert [step.time for step in ours] == theirs.timesteps.tolist()
    assert ours[-1].alpha_next == 1


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("schedule", ["linear", "scaled_linear", "squaredcos_cap_v2"])
def test_a_step_of_ddim(prediction: Prediction, eta: float, schedule: str) -> None:
    theirs = scheduler(
        "DDIMScheduler", 20, prediction_type=prediction, beta_schedule=schedule
    )
    noisy, output, noise = draws(3)
    for step in steps_of(theirs.alphas_cumprod, 20, eta=eta):
        clean, direction = split(noisy, output, step.alpha, prediction)
        ours = ddim_mean(clean, direction, step) + step.sigma * noise
        found = theirs.step(output, step.time, noisy, eta=eta, variance_noise=noise)
        size = float(found.pred_original_sample.abs().max())
        torch.testing.assert_close(
            clean / size, found.pred_original_sample / size, rtol=RTOL, atol=ATOL
        )
        torch.testing.assert_close(ours, found.prev_sample, rtol=1e-3, atol=1e-4 * size)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_with_all_its_noise_it_is_a_step_of_ddpm(prediction: Prediction) -> None:
    theirs = scheduler("DDPMScheduler", 50, prediction_type=prediction)
    noisy, output = draws(2)
    for step in steps_of(theirs.alphas_cumprod, 50)[10:]:
        noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
        clean, direction = split(noisy, output, step.alpha, prediction)
        ours = ddim_mean(clean, direction, step) + step.sigma * noise
        own = torch.Generator().manual_seed(1)
        found = theirs.step(output, step.time, noisy, generator=own).prev_sample
        torch.testing.assert_close(ours, found, rtol=1e-3, atol=1e-3)


def test_noise_on_an_image() -> None:
    theirs = scheduler("DDIMScheduler", 10)
    clean, noise = draws(2)
    for time in (0, 300, 999):
        ours = add_noise(clean, float(theirs.alphas_cumprod[time]), noise)
        found = theirs.add_noise(clean, noise, torch.tensor([time, time]))
        torch.testing.assert_close(ours, found)


@pytest.mark.parametrize("index", [10, 500, 990])
def test_a_step_back_up(index: int) -> None:
    theirs = diffusers.RePaintScheduler(beta_schedule="linear")
    theirs.set_timesteps(1000)
    step = steps_of(theirs.alphas_cumprod, 1000)[index]
    (after,) = draws(1)
    own = torch.Generator().manual_seed(1)
    noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    found = theirs.undo_step(after, step.time, own)
    torch.testing.assert_close(
        noise_again(after, step, noise), found, rtol=RTOL, atol=ATOL
    )
