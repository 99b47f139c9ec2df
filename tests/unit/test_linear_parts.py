"""The algebra under ``linear_inverse``, piece by piece."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.attacks._linear_krylov import conjugate
from privaudit.attacks._linear_map import ImageMap, is_affine
from privaudit.attacks._linear_newton import Effort, gauss_newton, undetermined
from privaudit.attacks._linear_norm import find_norm
from privaudit.attacks._linear_patches import PatchMap, find_patches, tokens_of
from privaudit.attacks._linear_prior import QuadraticPrior
from privaudit.attacks._linear_smooth import (
    Patches,
    PatchSets,
    smoothest,
)
from privaudit.attacks._linear_tokens import invert, noise_of, rounding
from privaudit.exposure import Cut, FeatureExposure
from privaudit.types import FeatureLayout, FeatureTarget

SHAPE = (2, 8, 12)
GRID = (2, 3)
PATCHES = Patches((4, 4), (8, 12))


def map_of(model: nn.Module, cut: str = "0", kind: Any = "nchw") -> ImageMap:
    layout = FeatureLayout(kind, 0, GRID)
    exposure = FeatureExposure(Normalisation((0.5,), (0.25,)), Cut(cut), layout)
    return ImageMap(FeatureTarget(model.eval(), exposure), SHAPE)


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def patch_conv(width: int = 40) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, width, 4, stride=4), nn.Identity())


def test_conjugate_gradients_solve_each_system_of_a_batch() -> None:
    roots = torch.randn(3, 6, 6, dtype=torch.double)
    matrices = roots @ roots.mT + torch.eye(6)
    right = torch.randn(3, 6, dtype=torch.double)
    found = conjugate(
        lambda x: (matrices @ x[..., None])[..., 0], right, steps=30, enough=1e-12
    )
    torch.testing.assert_close(found, torch.linalg.solve(matrices, right))


def test_conjugate_gradients_end_when_told() -> None:
    right = torch.randn(2, 5)
    found = conjugate(lambda x: 2 * x, right, steps=9, enough=0.0, go_on=lambda: False)
    assert not found.any()


def test_a_system_that_is_solved_does_not_move_with_the_others() -> None:
    scales = torch.tensor([[1.0, 1.0, 1.0], [1.0, 50.0, 2000.0]])
    right = torch.ones(2, 3)
    found = conjugate(lambda x: scales * x, right, steps=30, enough=1e-6)
    alone = conjugate(lambda x: scales[:1] * x, right[:1], steps=30, enough=1e-6)
    assert torch.equal(found[:1], alone)


@pytest.mark.parametrize("rectifier", [nn.Identity(), nn.GELU()])
def test_both_directions_of_a_derivative_agree(rectifier: nn.Module) -> None:
    image_map = map_of(nn.Sequential(nn.Conv2d(2, 5, 3), rectifier), "1")
    tangent = image_map.near(torch.rand(2, *SHAPE))
    step, weights = torch.randn(2, *SHAPE), torch.randn_like(tangent.value)
    ahead = (tangent.forward(step) * weights).sum()
    behind = (tangent.backward(weights) * step).sum()
    torch.testing.assert_close(ahead, behind, rtol=1e-4, atol=1e-4)
    assert not tangent.by_difference


class NoForward(torch.autograd.Function):
    """An operator of which only the gradient is known."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return 3 * values

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Tensor:
        return 3 * grads[0]


class Odd(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = NoForward.apply(images)
        return made


def test_operators_without_a_forward_derivative_are_differenced() -> None:
    tangent = map_of(nn.Sequential(Odd())).near(torch.rand(2, *SHAPE))
    step = torch.randn(2, *SHAPE)
    moved = tangent.forward(step)
    assert tangent.by_difference
    torch.testing.assert_close(moved, 12 * step, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("behind", "affine"),
    [
        (nn.Identity(), True), (nn.BatchNorm2d(40), True), (nn.ReLU(), False),
        (nn.LayerNorm(3), False), (nn.Hardtanh(-1e3, 1e3), True),
    ],
)  # fmt: skip
def test_affine_maps_are_told_by_trying(behind: nn.Module, affine: bool) -> None:
    model = nn.Sequential(nn.Conv2d(2, 40, 4, stride=4), behind)
    assert is_affine(map_of(model, "1"), draws()) is affine


def found_in(model: nn.Module, cut: str = "0") -> PatchMap | None:
    image_map = map_of(model, cut)
    layout = image_map.target.exposure.layout
    return find_patches(lambda x: tokens_of(image_map(x), layout), image_map, draws())


def test_the_matrix_of_a_patch_embedding_is_measured() -> None:
    model = patch_conv()
    found = found_in(model)
    assert found is not None
    conv = model[0]  # type: ignore[index]
    assert isinstance(conv, nn.Conv2d)
    torch.testing.assert_close(
        found.matrix, conv.weight.detach().flatten(1).double() / 0.25,
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip


def test_a_client_that_clamps_is_measured_in_its_range() -> None:
    class Clamped(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.clamp(-2.5, 2.5)

    assert found_in(nn.Sequential(Clamped(), patch_conv()), "1") is not None


def test_what_is_no_patch_embedding_is_told() -> None:
    overlapping = nn.Conv2d(2, 40, 6, stride=4, padding=1)
    assert found_in(nn.Sequential(overlapping)) is None

    class Moving(nn.Module):
        """Each place has weights of its own."""

        def forward(self, tokens: Tensor) -> Tensor:
            return tokens * torch.arange(1, 7).view(GRID)

    assert found_in(nn.Sequential(patch_conv(), Moving()), "1") is None


def test_rank_condition_and_what_is_lost() -> None:
    left, _ = torch.linalg.qr(torch.randn(6, 4, dtype=torch.double))
    right, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.double))
    matrix = left @ torch.diag(torch.tensor([1.0, 0.5, 1e-3, 0.0]).double()) @ right.T
    found = PatchMap(matrix, torch.zeros(1, 6, dtype=torch.double), PATCHES)
    assert [found.rank(t) for t in (1e-5, 1e-2)] == [3, 2]
    assert found.condition > 1e10
    known = found.errors(1e-4)
    torch.testing.assert_close(known[:3], torch.tensor([1e-4, 2e-4, 1e-1]).double())
    assert float(known[3]) > 1e9
    assert float((found.unreached(1e-6).T @ matrix).abs().max()) < 1e-10
    torch.testing.assert_close(found.inverse(3), torch.linalg.pinv(matrix, rtol=1e-5))


def test_patches_are_taken_apart_and_joined() -> None:
    images = torch.rand(2, *SHAPE)
    assert torch.equal(PATCHES.join(PATCHES.take(images)), images)
    assert PATCHES.take(images).shape == (2, 6, 32)


class Normed(nn.Module):
    """A norm that is sent, and one on the way that is not the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 40, 4, stride=4)
        self.norm, self.after = nn.LayerNorm(40), nn.GELU()

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.after(self.norm(self.patch(images).permute(0, 2, 3, 1)))
        return made


def test_the_norm_is_found_by_what_it_gives() -> None:
    model = Normed()
    found = find_norm(map_of(model, "norm", "nhwc"), draws())
    assert found is not None
    assert found.module is model.norm
    assert find_norm(map_of(model, "after", "nhwc"), draws()) is None
    assert find_norm(map_of(patch_conv()), draws()) is None


def test_channels_without_gain_are_left_out() -> None:
    model = Normed()
    nn.init.zeros_(model.norm.weight[:3])
    found = find_norm(map_of(model, "norm", "nhwc"), draws())
    assert found is not None
    assert found.kept.tolist() == list(range(3, 40))


def some_sets() -> PatchSets:
    own, common = torch.randn(2, 6, 32, 2).double(), torch.randn(32, 3).double()
    rows, pinned = torch.randn(2, 6, 1, 2).double(), torch.randn(2, 6, 1).double()
    base = torch.randn(2, 6, 32).double()
    common, precision = torch.linalg.qr(common)[0], torch.tensor([0.0, 0.1, 9.0])
    return PatchSets(PATCHES, base, own, common, rows, pinned, precision.double())


def test_projections_are_the_transposes_of_what_they_undo() -> None:
    sets, prior = some_sets(), QuadraticPrior.at(1.4 * torch.rand(2, *SHAPE).double())
    moves, images = torch.randn(2, 6, 5).double(), torch.randn(2, *SHAPE).double()
    torch.testing.assert_close(
        (sets.images(moves) * images).sum(), (sets.project(images) * moves).sum()
    )
    other = torch.randn_like(images)
    torch.testing.assert_close(
        (prior.curve(images) * other).sum(), (prior.curve(other) * images).sum()
    )


def test_the_smoothest_image_is_a_stationary_point() -> None:
    """No move changes the sum by much, least of all its last round's."""
    sets = some_sets()
    start = PATCHES.join(sets.base)
    images = smoothest(sets)
    added = PATCHES.take(images - start)
    ways = torch.cat([sets.own, sets.common.expand(2, 6, -1, -1)], -1)
    moves = torch.linalg.lstsq(ways, added[..., None]).solution[..., 0]
    torch.testing.assert_close(PATCHES.take(sets.images(moves)), added)

    def slope(images: Tensor, moves: Tensor) -> float:
        pull = sets.project(QuadraticPrior.at(images).pull(images)) + sets.pull(moves)
        return float((pull - sets.pull_of_pinned()).norm())

    assert slope(images, moves) < 0.1 * slope(start, torch.zeros_like(moves))


def test_the_prior_pulls_as_the_derivative_of_its_sum() -> None:
    images = (3 * torch.rand(1, *SHAPE) - 1).double().requires_grad_()
    size = images.diff(dim=-1).square().sum() + images.diff(dim=-2).square().sum()
    (slope,) = torch.autograd.grad(size / 0.05**2, images)
    torch.testing.assert_close(2 * QuadraticPrior.even(images).pull(images), slope)
    boxed = QuadraticPrior.at(images.detach())
    outside = (images - images.clamp(0, 1)).detach() / 0.02**2
    free = QuadraticPrior(boxed.across, boxed.down, 0 * boxed.held, boxed.bound)
    both = boxed.pull(images) - free.pull(images)
    torch.testing.assert_close(both.detach(), outside)


def test_a_flat_image_is_smooth() -> None:
    flat = torch.full((1, *SHAPE), 0.3)
    assert float(QuadraticPrior.at(flat).pull(flat).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("kind", "unit"),
    [(torch.float16, 2**-11), (torch.bfloat16, 2**-8), (torch.float32, 2**-24)],
)
def test_rounding_is_read_off_the_values(kind: torch.dtype, unit: float) -> None:
    values = torch.randn(50).to(kind).double()
    assert rounding(values) == unit


def test_noise_in_weak_directions_is_outweighed_by_smoothness() -> None:
    """One direction of patches is all but lost: noise of 1e-3 would drown the image."""
    left, _ = torch.linalg.qr(torch.randn(32, 32, dtype=torch.double))
    right, _ = torch.linalg.qr(torch.randn(32, 32, dtype=torch.double))
    values = torch.ones(32).double()
    values[-1] = 1e-3
    matrix = left @ torch.diag(values) @ right.T
    found = PatchMap(matrix, torch.zeros(6, 32, dtype=torch.double), PATCHES)
    across, down = torch.linspace(0, 0.5, 12), torch.linspace(0, 0.5, 8)
    truth = (across + down[:, None]).expand(2, *SHAPE).double()
    tokens = PATCHES.take(truth) @ matrix.T
    tokens[1] += 1e-3 * torch.randn_like(tokens[1])
    plain = PATCHES.join(tokens @ torch.linalg.inv(matrix).T)
    clean, noisy = (invert(found, one[None], None) for one in tokens)
    assert (clean.lost, noisy.lost) == (0, 1)
    torch.testing.assert_close(clean.image, truth[:1], atol=1e-3, rtol=0)
    assert float((plain[1] - truth[1]).abs().max()) > 0.5
    assert float((noisy.image - truth[:1]).abs().max()) < 0.1


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_the_noise_of_stored_tokens_is_their_rounding(kind: torch.dtype) -> None:
    tokens = torch.randn(1, 6, 32).double()
    rounded = tokens.to(kind).double()
    apart = float((rounded - tokens).square().mean().sqrt())
    assert 0.5 < noise_of(rounded) / apart < 2


def test_what_features_leave_open_is_measured() -> None:
    grey = torch.full((1, *SHAPE), 0.5)
    full = undetermined(map_of(nn.Sequential(nn.Conv2d(2, 40, 4, 4))), grey, draws())
    half = undetermined(map_of(nn.Sequential(nn.Conv2d(2, 16, 4, 4))), grey, draws())
    assert float(full) < 1e-3
    assert float(half) == pytest.approx(0.5**0.5, abs=0.1)


def test_maps_too_far_from_affine_are_given_up() -> None:
    class Wild(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.sin(300 * images)

    mixed = nn.Conv2d(2, 40, 5, padding=2)
    image_map = map_of(nn.Sequential(mixed, Wild()), "1")
    features = image_map(torch.rand(1, *SHAPE))
    start = torch.full((1, *SHAPE), 0.5)
    ended = gauss_newton(image_map, features, start, Effort(12, 10))
    assert len(ended.curve) <= 4
    assert ended.in_time
