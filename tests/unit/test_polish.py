"""Polish, and the untrained networks that draw images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from privaudit.attacks import Lm, _skip_network
from privaudit.attacks._feature_loss import FeatureLoss
from privaudit.attacks._polish import Polish, polish_images
from privaudit.attacks._skip_network import (
    Sizes,
    SkipNetworks,
    Weights,
    doubling,
    grouped,
    halving,
    one_by_one,
)
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.distances import MeanSquaredError
from privaudit.errors import ConfigError
from privaudit.priors import OpponentTotalVariation
from tests.contract.feature_cases import feature_case
from tests.unit.test_feature_search import (
    FREE,
    SHORT,
    SMALL,
    interrupting,
    meddled,
    pictures,
    run,
)


def test_ctrl_c_ends_an_attack_before_its_polish() -> None:
    case = feature_case("nchw")
    attack = SMALL.model_copy(update={"polish": 30})
    for one in run(attack, meddled(case, interrupting(6)), case.observation):
        assert one.reason == INTERRUPTED
        assert one.form == "feature matching"


def test_polish_makes_a_blurred_image_fit_better() -> None:
    case = feature_case("nchw")
    blurred = torch.nn.functional.avg_pool2d(case.images, 5, 1, 2)
    found = polish_images(
        case.target, case.observation, blurred, how=Polish(steps=150), budget=FREE
    )
    error = (pictures(found) - case.images).square().flatten(1).mean(1)
    assert bool(
        (error < 0.2 * (blurred - case.images).square().flatten(1).mean(1)).all()
    )
    for one in found:
        assert one.search is not None
        assert one.search.loss_final < 0.3 * one.search.loss_start
        assert one.form == "polish"


def test_polish_starts_at_black_and_white_too() -> None:
    """Both lie inside the box: neither infinite, nor stuck."""
    case = feature_case("nchw")
    start = (case.images > 0.5).float()
    found = polish_images(
        case.target, case.observation, start, how=Polish(steps=40), budget=FREE
    )
    for one, image in zip(found, start, strict=True):
        assert one.search is not None
        assert torch.allclose(one.search.pictures[0][1], image, atol=1e-4)
        assert one.search.loss_final < one.search.loss_start


def test_a_polished_attack_is_one_search() -> None:
    case = feature_case("nchw")
    plain = case.attack(SMALL, budget=FREE)
    more = case.attack(SMALL.model_copy(update={"polish": 20}), budget=FREE)
    for one, both in zip(plain, more, strict=True):
        assert one.search is not None
        assert both.search is not None
        assert both.form == "feature matching, polished"
        assert both.search.iterations == 12 + 20
        assert both.search.loss_start == one.search.loss_start
        assert both.search.loss_final < one.search.loss_final
        assert [i for i, _ in both.search.curve] == [10, 12, 22, 32]
        assert both.state == "plateau"
        assert "polish ended by iterations" in both.reason


def test_a_polish_does_not_hide_that_the_attack_was_stopped() -> None:
    case = feature_case("nchw")
    attack = SMALL.model_copy(update={"polish": 3, "iterations": 50})
    for one in case.attack(attack, budget=Budget(iterations=5)):
        assert one.state == "stopped"
        assert "polished" in one.form


def test_seconds_are_shared_with_the_polish() -> None:
    case = feature_case("nchw")
    attack = SMALL.model_copy(update={"polish": 10**6, "iterations": 10**6})
    for one in case.attack(attack, budget=Budget(seconds=1.0)):
        assert one.state == "stopped"
        assert one.form == "feature matching, polished"


@pytest.mark.parametrize("kernels", [(7, 7), (7, 7, 5, 4)])
def test_kernels_that_do_not_fit_are_refused(kernels: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected an odd side for each of 4 levels"):
        Lm(kernels=kernels)


@pytest.mark.parametrize("size", [(2, 2), (5, 7), (28, 28), (33, 18), (64, 32)])
def test_networks_draw_images_of_any_size(size: tuple[int, int]) -> None:
    sizes = Sizes(4, (8, 8, 8, 8), (3, 3, 3, 3), 2, 1).fitting(*size)
    weights = Weights(2, 1, torch.Generator().manual_seed(0), torch.device("cpu"))
    networks = SkipNetworks.filled(sizes, weights)
    drawn = networks.draw(torch.randn(2, 4, *size))
    assert drawn.shape == (2, 1, *size)
    assert bool(drawn.isfinite().all())


@pytest.mark.parametrize("way", [one_by_one, grouped])
@pytest.mark.parametrize("side", [1, 3, 5, 7])
def test_a_convolution_before_or_after_a_change_of_size(
    side: int, way: Callable[..., Tensor]
) -> None:
    x, weight, bias = (
        torch.randn(2, 3, 12, 10, dtype=torch.float64),
        torch.randn(2, 4, 3, side, side, dtype=torch.float64),
        torch.randn(2, 4, dtype=torch.float64),
    )
    plain = functional.avg_pool2d(way(x, weight, bias), 2)
    assert torch.allclose(way(x, halving(weight), bias, 2), plain)
    twice = way(functional.interpolate(x, scale_factor=2), weight, bias)
    phases = way(x, doubling(weight), bias.repeat_interleave(4, 1))
    assert torch.allclose(functional.pixel_shuffle(phases, 2), twice)


def test_large_and_small_maps_are_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(4, (8, 6, 4), (3, 7, 5), 2, 3).fitting(32, 40)
    weights = Weights(2, 1, torch.Generator().manual_seed(0), torch.device("cpu"))
    networks, fed = SkipNetworks.filled(sizes, weights), torch.randn(2, 4, 32, 40)
    for name, weight in networks.weights.items():
        if name.endswith(("gain", "shift")):
            weight.data += torch.rand_like(weight)
    drawn = []
    for limit in (10**6, 1):
        monkeypatch.setattr(_skip_network, "_LARGE", limit)
        drawn.append(networks.draw(fed).detach())
    assert torch.allclose(drawn[0], drawn[1], atol=1e-5)
    assert float(drawn[0].std()) > 1e-2


def test_one_network_an_image_however_they_are_run() -> None:
    x, weight, bias = (
        torch.randn(3, 4, 6, 5),
        torch.randn(3, 2, 4, 3, 3),
        torch.randn(3, 2),
    )
    apart, together = one_by_one(x, weight, bias), grouped(x, weight, bias)
    assert torch.allclose(apart, together, atol=1e-5)
    assert not torch.allclose(apart[0], one_by_one(x[:1], weight[1:2], bias[1:2])[0])


def test_frozen_weights_are_frozen_afterwards_and_get_no_gradient() -> None:
    case = feature_case("tokens")
    case.target.model.requires_grad_(False)
    for target in (case.target, meddled(case, interrupting(3))):
        run(SHORT, target, case.observation)
        assert not any(p.requires_grad for p in case.target.model.parameters())
        assert all(p.grad is None for p in case.target.model.parameters())


@pytest.mark.parametrize(("channels", "wanted"), [(24, 1), (4, 3), (1, 12)])
def test_a_prior_says_more_where_less_is_sent(channels: int, wanted: float) -> None:
    """768 pixels, and 1536, 256 or 64 values."""
    case = feature_case("nchw")
    target = meddled(case, lambda _, features: features[:, :channels])
    sent = case.observation.features[:, :channels]
    parts = FeatureLoss(target, sent, MeanSquaredError()).parts(case.images)
    plain = OpponentTotalVariation().penalty(case.images)
    assert torch.allclose(parts.smooth, wanted * plain)


def test_a_polish_behind_tokens_reads_their_lengths_too() -> None:
    case = feature_case("tokens")
    start = (case.images + 0.1 * torch.randn(case.images.shape)).clamp(0, 1)
    error = []
    for how in (Polish(steps=100), Polish(steps=100, distance="token_cosine")):
        found = polish_images(
            case.target, case.observation, start, how=how, budget=FREE
        )
        error.append((pictures(found) - case.images).square().flatten(1).mean(1))
    assert bool((error[0] < 0.8 * error[1]).all()), error


def test_an_image_that_would_fit_worse_is_left_as_it_was() -> None:
    """Much smoothing from the truth itself can only move away from it."""
    case = feature_case("nchw")
    how = Polish(steps=20, tv_weight=1e3, tv_weight_end=1e3)
    found = polish_images(
        case.target, case.observation, case.images, how=how, budget=Budget()
    )
    for one, truth in zip(found, case.images, strict=True):
        assert one.images is not None
        assert torch.equal(one.images[0], truth)
        assert any("left as they were" in note for note in one.notes)
        assert one.search is not None
        assert one.search.loss_final == one.search.loss_start
