"""Guided diffusion by numbers: every step against its closed form."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.attacks import Drag, DragPp, InverseNetwork
from privaudit.attacks._directed_noise import (
    Moments,
    Noise,
    clipped,
    directed_noise,
    unit,
)
from privaudit.attacks._feature_loss import FeatureLoss
from privaudit.attacks._guidance import Guidance, _thinned, guide
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.distances import MeanSquaredError
from privaudit.errors import ConfigError
from privaudit.exposure import Cut, FeatureExposure
from privaudit.priors.diffusion import DiffusionModel, PriorCard
from privaudit.priors.diffusion.schedule import (
    Step,
    add_noise,
    cosine_alphas,
    ddim_mean,
    noise_again,
    split,
    steps_of,
)
from privaudit.types import (
    FeatureLayout,
    FeatureObservation,
    FeatureTarget,
    Reconstruction,
)

SHAPE = (1, 16, 16)
SEEN = 64
"""Pixels that the toy client sends, of 256."""
CENTRE, SPREAD = 0.1, 0.3
"""Of the toy prior, on [-1, 1]."""
HOW = Guidance(
    steps=50, rounds=4, weight=0.2, clip_norm=0.02, eta=1.0, l2_weight=0.0,
    strength=1.0, moments=True, through=True, mix="lerp", clip_clean=False,
    clamp_input=False, give_up=0,
)  # fmt: skip
CARD = PriorCard(
    name="toy", kind="pixel diffusion", channels=1, parameters=0,
    learnt_from="a formula", good_for="tests", not_for="images",
)  # fmt: skip


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gaussian() -> DiffusionModel:
    """The exact noise predictor of pixels from N(CENTRE, SPREAD²)."""
    alphas = cosine_alphas()

    def predict(noisy: Tensor, step: Tensor) -> Tensor:
        alpha = alphas[step].view(-1, 1, 1, 1)
        apart = noisy - alpha.sqrt() * CENTRE
        return (1 - alpha).sqrt() * apart / (alpha * SPREAD**2 + 1 - alpha)

    return DiffusionModel(
        predict, alphas, "epsilon", lambda z: z, lambda x: x, lambda shape: shape,
        clip=False, card=CARD,
    )  # fmt: skip


class SomePixels(nn.Module):
    """Sends the first 64 pixels as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.out = nn.Flatten(), nn.Linear(256, SEEN, bias=False)
        with torch.no_grad():
            self.out.weight.copy_(torch.eye(SEEN, 256))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.flat(x))  # type: ignore[no-any-return]


def toy(images: Tensor) -> FeatureLoss:
    """The loss of images (rows, 1, 16, 16) in [0, 1] behind the toy client."""
    exposure = FeatureExposure(
        Normalisation((0.0,), (1.0,)), Cut("out"), FeatureLayout("vector")
    )
    model = SomePixels().eval()
    with torch.no_grad():
        sent = exposure.predict(model, images)
    return FeatureLoss(FeatureTarget(model, exposure), sent, MeanSquaredError())


def drawn(loss: FeatureLoss, how: Guidance, seed: int = 0, **more: object) -> Tensor:
    """One restart a row, each with noise of its own, (rows, 1, 16, 16) on [-1, 1]."""
    rows = len(loss.observed)
    noise = Noise(torch.Generator().manual_seed(seed), 1, rows)
    found = guide(
        gaussian(),
        loss,
        how,
        shape=SHAPE,
        noise=noise,
        budget=Budget(),
        **more,  # type: ignore[arg-type]
    )
    return torch.cat([row.image for row in found]) * 2 - 1


def some_truth(rows: int) -> Tensor:
    return ((CENTRE + SPREAD * normal(1, *SHAPE, seed=3)) / 2 + 0.5).expand(
        rows, *SHAPE
    )


# the schedule


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_tweedie_gives_back_image_and_noise(prediction: str) -> None:
    clean, noise, alpha = normal(2, 3, 4, 4), normal(2, 3, 4, 4, seed=1), 0.37
    noisy = add_noise(clean, alpha, noise)
    outputs = {
        "epsilon": noise,
        "v_prediction": math.sqrt(alpha) * noise - math.sqrt(1 - alpha) * clean,
        "sample": clean,
    }
    found = split(noisy, outputs[prediction], alpha, prediction)  # type: ignore[arg-type]
    torch.testing.assert_close(found[0], clean, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found[1], noise, atol=1e-6, rtol=1e-5)


def test_steps_lead_from_noise_to_none() -> None:
    plan = steps_of(cosine_alphas(), 50)
    assert [s.time for s in plan] == list(range(980, -1, -20))
    assert all(a.alpha_next == b.alpha for a, b in pairwise(plan))
    assert plan[-1].alpha_next == 1
    assert plan[-1].sigma == 0
    assert all(s.sigma > 0 for s in plan[:-1])


def test_a_part_of_a_run_is_its_end() -> None:
    plan = steps_of(cosine_alphas(), 50)
    assert steps_of(cosine_alphas(), 50, strength=0.3) == plan[-15:]
    assert steps_of(cosine_alphas(), 50, strength=0.001) == plan[-1:]


def test_a_step_keeps_the_variance_of_its_level() -> None:
    """x₀ and ε of variance 1 and independent: x_t' has variance 1 at every η."""
    clean, noise = normal(200_000), normal(200_000, seed=1)
    for eta in (0.0, 0.5, 1.0):
        step = steps_of(cosine_alphas(), 20, eta=eta)[7]
        after = ddim_mean(clean, noise, step) + step.sigma * normal(200_000, seed=2)
        assert float(after.var()) == pytest.approx(1, rel=0.02)


def test_with_eta_1_a_step_is_that_of_ddpm() -> None:
    """σ² = β̃ of Ho 2020, eq. 7."""
    step = steps_of(cosine_alphas(), 1000)[400]
    beta = 1 - step.alpha / step.alpha_next
    assert step.sigma**2 == pytest.approx(
        (1 - step.alpha_next) / (1 - step.alpha) * beta, rel=1e-9
    )


def test_noising_again_goes_back_to_the_level() -> None:
    step = Step(500, 0.3, 0.45, 0.1)
    clean, noise = normal(200_000), normal(200_000, seed=1)
    after = add_noise(clean, step.alpha_next, noise)
    again = noise_again(after, step, normal(200_000, seed=2))
    # What is left of the image is √ᾱ of it, and the rest has variance 1 − ᾱ.
    rest = again - math.sqrt(step.alpha) * clean
    assert float(rest.var()) == pytest.approx(1 - step.alpha, rel=0.02)
    assert abs(float((rest * clean).mean())) < 0.01


def test_left_out_steps_keep_the_schedule_whole() -> None:
    plan = steps_of(cosine_alphas(), 50)
    short = _thinned(plan, 7, 1.0)
    assert len(short) == 7
    assert short[0].alpha == plan[0].alpha
    assert short[-1].alpha_next == 1
    assert short[-1].sigma == 0
    assert all(a.alpha_next == b.alpha for a, b in pairwise(short))
    assert _thinned(plan, 50, 1.0) == plan


# the guidance


@pytest.mark.parametrize("mix", ["lerp", "slerp"])
@pytest.mark.parametrize("weight", [0.0, 0.2, 0.7, 1.0])
def test_noise_has_the_norm_r_in_each_row(mix: str, weight: float) -> None:
    gradient = (
        normal(3, 2, 8, 8, seed=1) * torch.tensor([1e-6, 1, 1e6])[:, None, None, None]
    )
    found = directed_noise(
        normal(3, 2, 8, 8),
        gradient,
        sigma=0.3,
        weight=weight,
        mix=mix,  # type: ignore[arg-type]
    )
    norms = found.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((3,), 0.3 * math.sqrt(128)))


def test_noise_turns_against_the_gradient() -> None:
    noise, gradient = normal(1, 1, 16, 16), normal(1, 1, 16, 16, seed=1)

    def cosine(weight: float, mix: str = "lerp") -> float:
        found = directed_noise(
            noise,
            gradient,
            sigma=0.3,
            weight=weight,
            mix=mix,  # type: ignore[arg-type]
        )
        return float((unit(found) * unit(gradient)).sum())

    assert cosine(1) == pytest.approx(-1, abs=1e-5)
    assert cosine(1, "slerp") == pytest.approx(-1, abs=1e-5)
    assert cosine(0.5) < cosine(0.2) < cosine(0)
    assert cosine(0.5, "slerp") < cosine(0.2, "slerp") < cosine(0, "slerp")


def test_without_weight_it_is_the_noise() -> None:
    noise = normal(2, 1, 16, 16)
    for mix in ("lerp", "slerp"):
        found = directed_noise(
            noise,
            normal(2, 1, 16, 16, seed=1),
            sigma=0.3,
            weight=0,
            mix=mix,
        )
        torch.testing.assert_close(unit(found), unit(noise), atol=1e-6, rtol=1e-5)


def test_equation_8_by_hand() -> None:
    """Two pixels: ε = (1, 0), g = (0, 2), σ = .5, w = .2, so r = √2·.5."""
    noise = torch.tensor([[[[1.0, 0.0]]]])
    gradient = torch.tensor([[[[0.0, 2.0]]]])
    radius = math.sqrt(2) * 0.5
    raw = torch.tensor([0.8 * 0.5, -0.2 * radius])
    found = directed_noise(noise, gradient, sigma=0.5, weight=0.2)
    torch.testing.assert_close(found.flatten(), radius * raw / raw.norm())


def test_a_zero_gradient_leaves_the_noise() -> None:
    noise = normal(1, 1, 4, 4)
    found = directed_noise(noise, torch.zeros(1, 1, 4, 4), sigma=0.3, weight=0.2)
    torch.testing.assert_close(unit(found), unit(noise))


def test_the_last_step_adds_none() -> None:
    noise = normal(1, 1, 4, 4)
    found = directed_noise(noise, noise, sigma=0.0, weight=0.2)
    assert not bool(found.any())


def test_each_row_is_clipped_by_itself() -> None:
    rows = torch.stack([torch.ones(4), 1e-3 * torch.ones(4)])
    found = clipped(rows, 0.02)
    assert float(found[0].norm()) == pytest.approx(0.02, rel=1e-5)
    assert torch.equal(found[1], rows[1])


def test_moments_are_those_of_adam() -> None:
    """The step that torch's Adam takes at rate 1 is the direction."""
    leaf = torch.zeros(1, 1, 3, 3, requires_grad=True)
    adam = torch.optim.Adam([leaf], lr=1.0, betas=(0.9, 0.999), eps=1e-8)
    moments = Moments()
    for turn in range(5):
        before, gradient = leaf.detach().clone(), normal(1, 1, 3, 3, seed=turn)
        leaf.grad = gradient
        adam.step()
        torch.testing.assert_close(moments.update(gradient), before - leaf.detach())


# the loop


def test_unguided_it_draws_from_the_prior() -> None:
    # Few steps of DDPM draw too little spread: 50 give .27 for .3.
    images = drawn(toy(some_truth(16)), replace(HOW, weight=0.0, rounds=1, steps=500))
    assert float(images.mean()) == pytest.approx(CENTRE, abs=0.02)
    assert float(images.std()) == pytest.approx(SPREAD, rel=0.06)


@pytest.mark.parametrize(
    ("change", "off"),
    [
        ({"weight": 0.5, "moments": False}, 0.15),
        ({"weight": 0.2, "moments": False}, 0.35),
        ({"weight": 0.5}, 0.3),
        ({"weight": 0.2}, 0.5),
    ],
    ids=str,
)
def test_a_gaussian_posterior_is_sampled(change: dict[str, Any], off: float) -> None:
    """What was sent is met; what was not sent is as the prior has it.

    Pixels are independent in this prior, so that the posterior of those sent is a
    point, and that of the others the prior. Guidance bends the noise and does not
    weigh it: the more it bends, the nearer the point, and the less the others spread.
    """
    truth = some_truth(16)
    images = drawn(toy(truth), replace(HOW, steps=100, **change))
    flat, wanted = images.flatten(1), (truth * 2 - 1).flatten(1)
    sent, rest = flat[:, :SEEN], flat[:, SEEN:]
    error = float((sent - wanted[:, :SEEN]).square().mean().sqrt())
    assert error < off * SPREAD
    assert float(rest.mean()) == pytest.approx(CENTRE, abs=0.03)
    assert float(rest.std()) == pytest.approx(SPREAD, rel=0.25)
    # Samples differ from each other where nothing was sent, and not where it was.
    assert float(rest.std(0).mean()) > 0.7 * SPREAD
    assert float(sent.std(0).mean()) < off * SPREAD


def test_four_at_once_equal_four_alone() -> None:
    truths = torch.cat([some_truth(1) * s for s in (1.0, 0.7, 0.5, 0.3)])
    how = replace(HOW, steps=20, rounds=2)

    def searched(images: Tensor) -> Tensor:
        noise = Noise(torch.Generator().manual_seed(0), len(images), 1)
        found = guide(
            gaussian(), toy(images), how, shape=SHAPE, noise=noise, budget=Budget()
        )
        return torch.cat([row.image for row in found])

    alone = torch.cat([searched(truths[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(searched(truths), alone, atol=1e-4, rtol=0)
    assert float((alone[0] - alone[3]).abs().max()) > 0.1


def test_restarts_differ() -> None:
    images = drawn(toy(some_truth(2)), replace(HOW, steps=10, rounds=1))
    assert float((images[0] - images[1]).abs().mean()) > 0.05


def test_a_start_is_kept_as_far_as_strength_says() -> None:
    start = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(5))
    loss = toy(some_truth(4))
    near = replace(HOW, strength=0.06, weight=0.0, rounds=1)
    far = replace(near, strength=1.0)
    kept = (drawn(loss, near, start=start) - (start * 2 - 1)).square().mean()
    lost = (drawn(loss, far, start=start) - (start * 2 - 1)).square().mean()
    assert float(kept) < 0.1 * float(lost)


def test_a_start_that_fits_better_than_the_end_is_the_answer() -> None:
    truth = some_truth(4)
    how = replace(HOW, weight=0.0, rounds=1)
    assert torch.equal(drawn(toy(truth), how, start=truth), truth * 2 - 1)


@pytest.mark.parametrize(
    "change",
    [{"moments": False}, {"through": False}, {"mix": "slerp"}, {"clamp_input": True}],
    ids=str,
)
def test_every_option_changes_the_search_and_still_finds(
    change: dict[str, Any],
) -> None:
    truth = some_truth(4)
    loss, how = toy(truth), replace(HOW, rounds=2)
    usual, other = drawn(loss, how), drawn(loss, replace(how, **change))
    assert not torch.equal(usual, other)
    wanted = (truth * 2 - 1).flatten(1)[:, :SEEN]
    error = (other.flatten(1)[:, :SEEN] - wanted).square().mean().sqrt()
    assert float(error) < 0.6 * SPREAD


def test_few_iterations_leave_levels_out_and_say_so() -> None:
    loss = toy(some_truth(1))
    noise = Noise(torch.Generator().manual_seed(0), 1, 1)
    found = guide(
        gaussian(), loss, HOW, shape=SHAPE, noise=noise,
        budget=Budget(iterations=40),
    )  # fmt: skip
    assert (found[0].end, found[0].iterations) == ("budget", 40)


def test_no_time_ends_it_with_what_there_is() -> None:
    loss = toy(some_truth(1))
    noise = Noise(torch.Generator().manual_seed(0), 1, 1)
    found = guide(
        gaussian(), loss, HOW, shape=SHAPE, noise=noise,
        budget=Budget(seconds=1e-6),
    )  # fmt: skip
    assert found[0].end == "seconds"
    assert math.isfinite(found[0].value)


def test_it_stops_where_nothing_is_gained() -> None:
    loss = toy(some_truth(1))
    noise = Noise(torch.Generator().manual_seed(0), 1, 1)
    found = guide(
        gaussian(), loss, replace(HOW, weight=0.0, give_up=3), shape=SHAPE,
        noise=noise, budget=Budget(),
    )  # fmt: skip
    assert found[0].end == "plateau"
    assert found[0].iterations < HOW.steps * HOW.rounds


def test_a_row_that_is_not_finite_fails_alone() -> None:
    loss = toy(some_truth(2))
    broken = loss.observed.clone()
    broken[1] = float("inf")
    found = guide(
        gaussian(), replace(loss, observed=broken), replace(HOW, steps=5),
        shape=SHAPE, noise=Noise(torch.Generator().manual_seed(0), 2, 1),
        budget=Budget(),
    )  # fmt: skip
    assert [row.end for row in found] == ["iterations", "numerical"]


# the attacks


def test_a_part_of_a_run_needs_a_start() -> None:
    with pytest.raises(ValidationError, match="start="):
        Drag(strength=0.5)


def test_without_a_start_it_is_skipped() -> None:
    loss = toy(some_truth(1))
    seen = FeatureObservation(loss.observed, SHAPE)
    for attack in (Drag(start="best", strength=0.5), DragPp()):
        found = attack.run(
            loss.target, seen, budget=Budget(),
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        assert found[0].state == "skipped"
        assert "start" in found[0].reason


def test_no_prior_for_five_channels() -> None:
    loss = toy(some_truth(1))
    seen = FeatureObservation(loss.observed, (5, 16, 16))
    found = Drag().run(
        loss.target, seen, budget=Budget(), generator=torch.Generator().manual_seed(0)
    )
    assert found[0].state == "skipped"
    assert "5 channel(s)" in found[0].reason


def test_its_prior_is_named() -> None:
    loss = toy(some_truth(1))
    target = replace(loss.target, priors={"diffusion": gaussian()})
    found = Drag(steps=4, rounds=1).run(
        target, FeatureObservation(loss.observed, SHAPE), budget=Budget(),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found[0].prior == CARD
    assert any("a formula" in note for note in found[0].notes)
    assert found[0].search is not None
    assert len(found[0].search.pictures) == 4


def test_ctrl_c_while_its_network_learns_ends_drag_pp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps what the network draws by then, and begins no second search."""
    stopped = [Reconstruction(torch.full((1, *SHAPE), 0.5), "stopped", INTERRUPTED)]
    monkeypatch.setattr(InverseNetwork, "run", lambda *_, **__: stopped)
    loss = toy(some_truth(1))
    target = replace(loss.target, priors={"diffusion": gaussian()})
    found = DragPp().run(
        target, FeatureObservation(loss.observed, SHAPE), budget=Budget(),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found == stopped


def test_drag_pp_hides_nothing_of_the_network_that_it_starts_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason = "training was cut short: no time was left"
    begun = Reconstruction(
        torch.full((1, *SHAPE), 0.5), "stopped", reason, notes=("trained on 7 images",)
    )
    monkeypatch.setattr(InverseNetwork, "run", lambda *_, **__: [begun])
    loss = toy(some_truth(1))
    target = replace(loss.target, priors={"diffusion": gaussian()})
    (found,) = DragPp(drag=Drag(steps=4, rounds=1)).run(
        target, FeatureObservation(loss.observed, SHAPE), budget=Budget(),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found.state == "stopped"
    assert reason in found.reason
    assert "trained on 7 images" in found.notes


@pytest.mark.parametrize(
    ("error", "kept"), [("out of memory", True), ("shapes do not fit", False)]
)
def test_a_control_that_cannot_be_drawn_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, error: str, kept: bool
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr("privaudit.attacks._guided_search.unguided", broken)
    loss = toy(some_truth(1))
    target = replace(loss.target, priors={"diffusion": gaussian()})
    seen = FeatureObservation(loss.observed, SHAPE)
    with contextlib.nullcontext() if kept else pytest.raises(RuntimeError):
        (found,) = Drag(steps=4, rounds=1).run(
            target, seen, budget=Budget(), generator=torch.Generator().manual_seed(0)
        )
        assert found.images is not None
        assert found.unguided is None
        assert any("control not drawn" in n for n in found.notes)


def test_lengths_have_names() -> None:
    assert Drag.preset("cpu") == Drag()
    assert (Drag.preset("paper").steps, Drag.preset("paper").rounds) == (250, 16)
    assert Drag.preset("fast", rounds=2).rounds == 2
    assert Drag.preset("thorough") == Drag.preset("paper", l2_weight=0.0)
    assert Drag.preset("fast").through is False
    with pytest.raises(ConfigError, match="one of fast, cpu, paper"):
        Drag.preset("quick")
