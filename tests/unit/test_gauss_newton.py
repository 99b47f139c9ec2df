"""``gauss_newton``: gradients that determine the image, solved for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, Budget, Client
from privaudit._pixels import Normalisation
from privaudit.attacks.base import INTERRUPTED
from privaudit.attacks.gauss_newton import KINKS, GaussNewton
from privaudit.attacks.inverting_gradients import InvertingGradients
from privaudit.exposure import GradientExposure, LocalSteps
from privaudit.metrics import Ssim
from privaudit.types import AttackerKnowledge, Batch, Reconstruction, Target
from tests.models.dia import lenet
from tests.unit.test_dropout_inversion import MEAN, STD, photographs

SIDE = 16


def smooth_cnn(*between: nn.Module, channels: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.Tanh(), *between, nn.AvgPool2d(2),
        nn.Conv2d(channels, 16, 3, padding=1), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def attack(
    model: nn.Module,
    plugin: GaussNewton | InvertingGradients,
    *,
    count: int = 1,
    exposure: GradientExposure | None = None,
    noise: float = 0.0,
) -> tuple[Reconstruction, Batch]:
    batch = Batch(photographs(count, SIDE), torch.arange(count) + 3)
    exposure = exposure or GradientExposure(Normalisation(MEAN, STD))
    observation = exposure.observe(model, batch, seed=0).observation
    if noise:
        torch.manual_seed(1)
        for name, sent in observation.gradients.items():
            size = noise * sent.square().mean().sqrt()
            observation.gradients[name] = sent + size * torch.randn_like(sent)  # type: ignore[index]
    target = Target(
        model, exposure, AttackerKnowledge(batch.labels), noise_share=noise**2
    )
    generator = torch.Generator().manual_seed(0)
    found = plugin.run(target, observation, budget=Budget(), generator=generator)
    return found, batch


def ssim(found: Reconstruction, batch: Batch) -> float:
    assert found.images is not None
    values = [s.value for s in Ssim().score(batch.images, found.images)]
    return min(v for v in values if v is not None)


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_lenet_is_solved_through_dropout(p: float) -> None:
    torch.manual_seed(0)
    found, batch = attack(lenet(p, size=SIDE), GaussNewton())
    assert found.state == "exact"
    assert ssim(found, batch) > 0.999
    assert found.search is not None
    assert found.search.loss_final < 1e-6 * found.search.loss_start


def test_it_ends_where_first_order_search_of_more_work_does_not() -> None:
    model = smooth_cnn()
    newton, batch = attack(model, GaussNewton())
    search, _ = attack(
        model, InvertingGradients(schedule=InvertingGradients.tiny().schedule)
    )
    assert newton.state == "exact"
    assert ssim(newton, batch) > max(0.999, ssim(search, batch))


def test_masks_that_do_not_show_are_unknowns_of_their_own() -> None:
    model = smooth_cnn(nn.Dropout2d(0.25))
    found, batch = attack(model, GaussNewton())
    assert found.masks is not None
    (draw,) = [d for d in found.masks if d.is_mask]
    assert draw.value is not None
    assert float(draw.value.min()) >= 0
    assert float(draw.value.max()) <= 1
    assert ssim(found, batch) > 0.9


def test_two_images_are_told_apart() -> None:
    found, batch = attack(smooth_cnn(channels=32), GaussNewton(), count=2)
    assert ssim(found, batch) > 0.95


def test_noise_is_not_fitted() -> None:
    found, batch = attack(smooth_cnn(), GaussNewton(shakes=0), noise=0.01)
    clean, _ = attack(smooth_cnn(), GaussNewton(shakes=0))
    assert found.search is not None
    assert clean.search is not None
    assert not clean.notes
    assert found.search.iterations < clean.search.iterations
    assert ssim(found, batch) > 0.8


def test_kinks_end_it_without_a_claim() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    found, _ = attack(model, GaussNewton())
    assert found.state == "plateau"
    assert found.images is not None
    assert KINKS in found.notes


def test_several_local_steps_are_equations_too() -> None:
    exposure = GradientExposure(
        Normalisation(MEAN, STD), local=LocalSteps(count=2, lr=0.1)
    )
    found, batch = attack(
        smooth_cnn(channels=32), GaussNewton(), count=2, exposure=exposure
    )
    assert ssim(found, batch) > 0.9


def test_what_has_no_slope_is_refused_by_name() -> None:
    model = smooth_cnn()
    batch = Batch(photographs(1, SIDE), torch.tensor([3]))
    exposure = GradientExposure(Normalisation(MEAN, STD))
    observation = exposure.observe(model, batch, seed=0).observation
    joint = Target(model, exposure, AttackerKnowledge(None, None, True))
    signs = Target(
        model,
        GradientExposure(
            Normalisation(MEAN, STD),
            local=LocalSteps(count=1, lr=0.1, optimizer="adamw"),
        ),
        AttackerKnowledge(batch.labels),
    )
    for target, words in ((joint, "labels are unknown"), (signs, "signs")):
        found = GaussNewton().run(
            target, observation, budget=Budget(), generator=torch.Generator()
        )
        assert found.state == "skipped"
        assert words in found.reason


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from privaudit.attacks import _levenberg

    ticks: list[float] = []

    def after_two(done: int, total: int, loss: float) -> None:
        ticks.append(loss)
        if len(ticks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(_levenberg, "tick", after_two)
    found, _ = attack(smooth_cnn(), GaussNewton())
    assert (found.state, found.reason) == ("stopped", INTERRUPTED)
    assert found.images is not None


def test_an_audit_of_lenet_needs_no_search() -> None:
    torch.manual_seed(0)
    model = lenet(0.5, size=SIDE)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    result = Auditor(
        model, mean=MEAN, std=STD, budget="quick", client=Client(batch_size=1)
    ).audit((photographs(1, SIDE), torch.tensor([3])))
    assert result.verdict.word == "leaks"
    assert result.verdict.worst["ssim"].attack == "gauss_newton"
    assert result.attacks["gauss_newton"].state == "exact"
    assert result.attacks["dropout_inversion"].state == "skipped"
    assert not result.verdict.causes, "an exact attack is one that the verdict needs"
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_its_end_clears_nothing_and_blocks_nothing() -> None:
    """Left out by name, or stuck, it is no reason for a verdict."""
    torch.manual_seed(0)
    images: Tensor = photographs(1, SIDE)
    result = Auditor(
        lenet(0.5, size=SIDE), mean=MEAN, std=STD, budget=Budget(iterations=20),
        client=Client(batch_size=1), attacks=["closed_form", "dropout_inversion"],
    ).audit((images, torch.tensor([3])))  # fmt: skip
    assert not any("gauss_newton" in c.text for c in result.verdict.causes)
    assert any("sparse_factorization" in c.text for c in result.verdict.causes)
