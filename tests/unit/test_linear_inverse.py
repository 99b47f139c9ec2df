"""``linear_inverse`` on cuts small enough for a second each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import LinearInverse
from privaudit.config import Budget
from privaudit.errors import AttackError
from privaudit.exposure import Cut, FeatureExposure
from privaudit.metrics import Ssim
from privaudit.types import (
    FeatureLayout,
    FeatureObservation,
    FeatureTarget,
    Reconstruction,
)

SIDE = 32
TOKENS = FeatureLayout("tokens", 1, (8, 8))
NORMAL = Normalisation((0.5,), (0.25,))


class Embedding(nn.Module):
    """Patches of 4 x 4, a class token, positions, and a LayerNorm behind it all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(0.1 * torch.randn(1, 65, width))
        self.sent = nn.Identity()
        self.norm = nn.LayerNorm(width)
        self.behind = nn.Linear(width, width)
        nn.init.normal_(self.norm.weight, 1.0, 0.1)
        nn.init.normal_(self.norm.bias, 0.0, 0.1)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(images), -1, -1), tokens], 1)
        made: Tensor = self.behind(self.norm(self.sent(tokens + self.position)))
        return made


class Stem(nn.Module):
    """Patches and a norm, as in Swin and ConvNeXt; black gives zero."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 4, stride=4, bias=False)
        self.norm = nn.LayerNorm(48, eps=epsilon)

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.norm(self.patch(images).permute(0, 2, 3, 1))
        return made


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().eval()


def convolutions(*behind: nn.Module, stride: int = 2, width: int = 32) -> nn.Module:
    def build() -> nn.Module:
        first = nn.Conv2d(3, width, 3, stride=stride, padding=1)
        return nn.Sequential(first, nn.BatchNorm2d(width), *behind)

    return seeded(build)


def invert(
    model: nn.Module,
    cut: str,
    layout: FeatureLayout,
    *,
    count: int = 2,
    change: Callable[[Tensor], Tensor] = lambda h: h,
    budget: Budget | None = None,
) -> tuple[list[Reconstruction], Tensor]:
    """What the attack makes of photographs, and their SSIM."""
    images = shipped_images(4, (3, SIDE, SIDE))[:count]
    exposure = FeatureExposure(NORMAL, Cut(cut), layout)
    with torch.no_grad():
        sent = change(exposure.predict(model, images))
    found = LinearInverse().run(
        FeatureTarget(model, exposure),
        FeatureObservation(sent, (3, SIDE, SIDE)),
        budget=budget or Budget(),
        generator=torch.Generator().manual_seed(0),
    )
    made = [f.images for f in found if f.images is not None]
    scores = Ssim().measure(images, torch.cat(made)) if made else torch.empty(0)
    return found, scores


@pytest.mark.parametrize("width", [48, 64])
def test_a_patch_embedding_is_solved_exactly(width: int) -> None:
    found, ssim = invert(seeded(lambda: Embedding(width)), "sent", TOKENS)
    assert float(ssim.min()) > 0.9999
    for one in found:
        assert (one.state, one.reason, one.determined) == ("exact", "", True)
        assert one.form == "matrix of a patch embedding"
        assert "condition number" in one.notes[0]
        assert [f.applied for f in one.forms] == [True, False]


def test_the_matrix_is_measured_for_maps_as_well() -> None:
    layout = FeatureLayout("nchw", 0, (8, 8))
    found, ssim = invert(seeded(lambda: Embedding(48)), "patch", layout)
    assert float(ssim.min()) > 0.9999
    assert found[0].form == "matrix of a patch embedding"


def test_a_narrow_patch_embedding_is_filled_in_and_never_called_exact() -> None:
    found, ssim = invert(seeded(lambda: Embedding(24)), "sent", TOKENS)
    assert float(ssim.mean()) > 0.6
    for one in found:
        assert one.state == "plateau"
        assert not one.determined
        assert "24 of the 48 values of a patch" in one.reason


def test_behind_a_layer_norm_smoothness_gives_back_mean_and_scale() -> None:
    found, ssim = invert(seeded(lambda: Embedding(48)), "norm", TOKENS)
    assert float(ssim.min()) > 0.9
    for one in found:
        assert one.state == "plateau"
        assert "LayerNorm hides mean and scale" in one.reason
        assert one.form.endswith("behind a LayerNorm")
        assert not one.determined


def test_behind_a_layer_norm_wide_tokens_need_no_smoothness() -> None:
    """48 values in 96 channels: constants tell mean and scale."""
    _, ssim = invert(seeded(lambda: Embedding(96)), "norm", TOKENS)
    assert float(ssim.min()) > 0.9999


def test_the_epsilon_of_a_norm_gives_the_scale_away() -> None:
    """Without bias or position the tokens of a patch lie on a line: s is all open."""
    layout = FeatureLayout("nhwc", 0, (8, 8))
    _, ssim = invert(seeded(lambda: Stem(epsilon=1e-2)), "norm", layout)
    _, blind = invert(seeded(lambda: Stem(epsilon=0.0)), "norm", layout)
    assert float(ssim.min()) > 0.95
    assert float(blind.mean()) < float(ssim.mean())


def test_an_overlapping_convolution_is_solved_exactly() -> None:
    found, ssim = invert(convolutions(), "1", FeatureLayout("nchw", 0, (16, 16)))
    assert float(ssim.min()) > 0.9999
    for one in found:
        assert (one.state, one.determined) == ("exact", True)
        assert one.form == "conjugate gradients"
        assert one.search is not None
        assert one.search.iterations > 0


def test_an_affine_map_that_loses_something_is_never_called_exact() -> None:
    model = convolutions(stride=4, width=16)
    found, _ = invert(model, "1", FeatureLayout("nchw", 0, (8, 8)))
    for one in found:
        assert one.state == "plateau"
        assert "of a random change of the image open" in one.reason
        assert not one.determined


@pytest.mark.parametrize("rectifier", [nn.ReLU(), nn.ReLU6()])
def test_a_rectifier_is_seen_through(rectifier: nn.Module) -> None:
    model = convolutions(rectifier, width=64)
    found, ssim = invert(model, "2", FeatureLayout("nchw", 0, (16, 16)))
    assert float(ssim.min()) > 0.999
    assert {(f.form, f.state, f.determined) for f in found} == {
        ("Gauss-Newton", "exact", False)
    }


def test_deep_cuts_with_few_features_are_not_applicable() -> None:
    model = convolutions(nn.ReLU(), nn.AvgPool2d(8))
    found, _ = invert(model, "3", FeatureLayout("nchw", 0, (2, 2)))
    for one in found:
        assert (one.state, one.images, one.search) == ("skipped", None, None)
        assert "features are not affine" in one.reason
        assert "128 for 3072" in one.reason
        assert not any(f.applied for f in one.forms)


def test_features_in_half_precision_still_show_the_image() -> None:
    model = seeded(lambda: Embedding(48))
    found, ssim = invert(model, "sent", TOKENS, change=lambda h: h.half().float())
    assert float(ssim.min()) > 0.98
    assert {f.state for f in found} == {"plateau"}
    assert all("matched to" in f.reason for f in found)


def test_noise_on_features_does_not_drown_the_image() -> None:
    model = seeded(lambda: Embedding(48))
    noise = torch.randn(2, 65, 48)
    _, ssim = invert(model, "sent", TOKENS, change=lambda h: h + 0.01 * noise)
    assert float(ssim.mean()) > 0.9


@pytest.mark.parametrize("cut", ["sent", "norm"])
def test_no_image_depends_on_the_others(cut: str) -> None:
    model = seeded(lambda: Embedding(48))
    together, _ = invert(model, cut, TOKENS, count=3)
    alone, _ = invert(model, cut, TOKENS, count=1)
    assert together[0].images is not None
    assert alone[0].images is not None
    torch.testing.assert_close(together[0].images, alone[0].images, atol=1e-4, rtol=0)


def test_no_image_depends_on_the_others_in_gauss_newton() -> None:
    layout = FeatureLayout("nchw", 0, (16, 16))
    model = convolutions(nn.ReLU(), width=64)
    together, _ = invert(model, "2", layout, count=3)
    alone, _ = invert(model, "2", layout, count=1)
    assert together[0].images is not None
    assert alone[0].images is not None
    torch.testing.assert_close(together[0].images, alone[0].images, atol=1e-3, rtol=0)


@pytest.mark.parametrize("budget", [Budget(iterations=3), Budget(seconds=1e-6)])
def test_a_spent_budget_is_said(budget: Budget) -> None:
    layout = FeatureLayout("nchw", 0, (16, 16))
    found, _ = invert(convolutions(), "1", layout, budget=budget)
    for one in found:
        assert one.state == "stopped"
        assert "budget was spent" in one.reason
        assert one.images is not None


def test_a_wrong_layout_does_no_harm() -> None:
    """Nothing rests on it: the matrix is checked against the model."""
    wrong = FeatureLayout("tokens", 0, (5, 13))
    found, ssim = invert(seeded(lambda: Embedding(48)), "sent", wrong)
    assert found[0].form == "conjugate gradients"
    assert float(ssim.min()) > 0.9


@pytest.mark.parametrize("bad", [0.0, float("nan")])
def test_features_that_say_nothing_are_refused(bad: float) -> None:
    with pytest.raises(AttackError, match=r"observation\.features"):
        invert(
            convolutions(), "1", FeatureLayout("nchw", 0, (16, 16)),
            change=lambda h: torch.full_like(h, bad),
        )  # fmt: skip


def test_a_cut_model_comes_back_untouched() -> None:
    model = seeded(lambda: Embedding(48))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for cut in ("sent", "norm"):
        invert(model, cut, TOKENS, count=1)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())
