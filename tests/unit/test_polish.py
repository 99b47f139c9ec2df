"""Polish, and the untrained networks that draw images."""

from __future__ import annotations

import pytest
import torch

from privaudit.attacks import Lm
from privaudit.attacks._polish import Polish, polish_images
from privaudit.attacks._skip_network import (
    Sizes,
    SkipNetworks,
    Weights,
    grouped,
    one_by_one,
)
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.errors import ConfigError
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
