"""Distances between features and priors of single images, against plain loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privaudit.distances import (
    FEATURE_DISTANCES,
    FeatureDistance,
    MeanSquaredError,
    TokenCosine,
)
from privaudit.priors import IMAGE_PRIORS, PatchBoundary, PixelTotalVariation
from privaudit.types import FeatureLayout

SHAPES = {"tokens": (3, 5, 8), "nchw": (3, 8, 2, 4), "nhwc": (3, 2, 4, 8)}
SHAPES["vector"] = (3, 8)


@pytest.fixture(params=sorted(FEATURE_DISTANCES))
def distance(request: pytest.FixtureRequest) -> FeatureDistance:
    return FEATURE_DISTANCES[str(request.param)]()


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_a_distance_is_one_value_an_image(distance: FeatureDistance, kind: str) -> None:
    layout = FeatureLayout(kind)  # type: ignore[arg-type]
    observed, guess = torch.randn(SHAPES[kind]), torch.randn(SHAPES[kind])
    found = distance.measure(guess, observed, layout)
    assert found.shape == (3,)
    assert bool((found > 0.01).all())
    assert torch.allclose(
        distance.measure(observed, observed, layout), torch.zeros(3), atol=1e-6
    )
    for index in range(3):
        part = slice(index, index + 1)
        alone = distance.measure(guess[part], observed[part], layout)
        assert torch.allclose(alone, found[part])


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_a_distance_has_a_finite_slope_even_at_zero(
    distance: FeatureDistance, kind: str
) -> None:
    layout = FeatureLayout(kind)  # type: ignore[arg-type]
    for guess in (torch.zeros(SHAPES[kind]), torch.ones(SHAPES[kind])):
        for observed in (torch.zeros(SHAPES[kind]), torch.ones(SHAPES[kind])):
            leaf = guess.clone().requires_grad_()
            value = distance.measure(leaf, observed, layout).sum()
            (slope,) = torch.autograd.grad(value, leaf)
            assert bool(slope.isfinite().all())
            assert bool(value.isfinite())


def test_token_cosine_is_the_mean_over_tokens() -> None:
    observed, guess = torch.randn(2, 7, 5), torch.randn(2, 7, 5)
    found = TokenCosine().measure(guess, observed, FeatureLayout("tokens", 1))
    for image in range(2):
        rows = zip(guess[image], observed[image], strict=True)
        each = [float(F.cosine_similarity(g, o, dim=0)) for g, o in rows]
        assert float(found[image]) == pytest.approx(1 - sum(each) / 7, abs=1e-6)


def test_maps_have_their_channels_where_the_layout_says() -> None:
    observed, guess = torch.randn(2, 6, 3, 4), torch.randn(2, 6, 3, 4)
    mine, theirs = (t.flatten(2).transpose(1, 2) for t in (guess, observed))
    first = TokenCosine().measure(guess, observed, FeatureLayout("nchw"))
    last = TokenCosine().measure(
        guess.permute(0, 2, 3, 1), observed.permute(0, 2, 3, 1), FeatureLayout("nhwc")
    )
    wanted = TokenCosine().measure(mine, theirs, FeatureLayout("tokens"))
    assert torch.allclose(first, wanted)
    assert torch.allclose(last, wanted)


def test_a_token_that_was_sent_as_zero_is_left_out() -> None:
    observed = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    guess = torch.tensor([[[2.0, 0.0], [5.0, 5.0]]])
    found = TokenCosine().measure(guess, observed, FeatureLayout("tokens"))
    assert float(found) == pytest.approx(0, abs=1e-6)


def test_cosine_is_blind_to_length_and_the_squared_error_is_not() -> None:
    observed = torch.randn(2, 7, 5)
    layout = FeatureLayout("tokens")
    assert float(TokenCosine().measure(3 * observed, observed, layout).max()) < 1e-6
    found = MeanSquaredError().measure(3 * observed, observed, layout)
    assert found.tolist() == pytest.approx([4.0, 4.0])


def test_in_the_squared_error_every_token_counts_alike() -> None:
    observed = torch.tensor([[[1.0, 0.0], [0.0, 100.0], [0.0, 0.0]]])
    guess = torch.tensor([[[2.0, 0.0], [0.0, 100.0], [7.0, 7.0]]])
    error = MeanSquaredError()
    # The first is off by its own length, the second right, the third was not sent.
    found = error.measure(guess, observed, FeatureLayout("tokens"))
    assert found.tolist() == [0.5]
    together = error.measure(guess, observed, FeatureLayout("nhwc"))
    assert together.tolist() == pytest.approx([(1 + 2 * 49) / 10001])


@given(scale=st.floats(1e-4, 1e4))
@settings(max_examples=20, deadline=None)
def test_the_squared_error_means_the_same_for_features_of_any_size(
    scale: float,
) -> None:
    drawn = torch.Generator().manual_seed(0)
    observed, guess = (torch.randn(2, 9, generator=drawn) for _ in range(2))
    layout, error = FeatureLayout("vector"), MeanSquaredError()
    found = error.measure(scale * guess, scale * observed, layout)
    wanted = error.measure(guess, observed, layout)
    assert torch.allclose(found, wanted, rtol=1e-3)


def seams(image: Tensor, patch: tuple[int, int]) -> float:
    """Equation 15 of Lei 2025, with loops."""
    down, across = patch
    _, height, width = image.shape
    total = 0.0
    for k in range(1, height // down):
        total += float((image[:, down * k] - image[:, down * k - 1]).norm())
    for k in range(1, width // across):
        jump = image[:, :, across * k] - image[:, :, across * k - 1]
        total += float(jump.norm())
    return total


@given(
    patch=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
@settings(max_examples=40, deadline=None)
def test_patch_boundaries_follow_the_paper(
    patch: tuple[int, int], grid: tuple[int, int]
) -> None:
    drawn = torch.Generator().manual_seed(0)
    size = (patch[0] * grid[0], patch[1] * grid[1])
    images = torch.rand(2, 3, *size, generator=drawn)
    found = PatchBoundary(patch=patch).penalty(images)
    wanted = [seams(image, patch) for image in images]
    assert found.tolist() == pytest.approx(wanted, abs=1e-4)


def test_total_variation_follows_the_paper() -> None:
    images = torch.rand(2, 3, 5, 7)
    for image, found in zip(images, PixelTotalVariation().penalty(images), strict=True):
        across = (image[:, :, 1:] - image[:, :, :-1]).abs().sum()
        down = (image[:, 1:] - image[:, :-1]).abs().sum()
        assert float(found) == pytest.approx(float(across + down) / (3 * 5 * 7))


@pytest.mark.parametrize("name", sorted(IMAGE_PRIORS))
def test_priors_prefer_a_flat_image_and_have_a_slope_there(name: str) -> None:
    prior = IMAGE_PRIORS[name]()
    flat = torch.full((2, 3, 32, 32), 0.4, requires_grad=True)
    value = prior.penalty(flat)
    assert value.shape == (2,)
    assert bool((value < prior.penalty(torch.rand(2, 3, 32, 32))).all())
    (slope,) = torch.autograd.grad(value.sum(), flat)
    assert bool(slope.isfinite().all())
