"""A gradient that is not quite exact still gives a picture, never called exact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Client
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import ClosedForm
from privaudit.config import Budget
from privaudit.exposure import GradientExposure
from privaudit.metrics import Ssim
from privaudit.types import AttackerKnowledge, Batch, Observation, Target

EXPOSURE = GradientExposure(Normalisation((0.5,) * 3, (0.25,) * 3))


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 5)
    )


@pytest.mark.parametrize(("noise", "least"), [(1e-3, 0.98), (3e-2, 0.5)])
def test_a_noisy_gradient_gives_an_approximate_picture(
    noise: float, least: float
) -> None:
    model = perceptron()
    batch = Batch(shipped_images(1, (3, 16, 16)), torch.tensor([1]))
    seen = EXPOSURE.observe(model, batch, seed=0).observation
    generator = torch.Generator().manual_seed(0)
    noisy = {
        n: g
        + noise * g.square().mean().sqrt() * torch.randn(g.shape, generator=generator)
        for n, g in seen.gradients.items()
    }
    found = ClosedForm().run(
        Target(model, EXPOSURE, AttackerKnowledge(batch.labels)),
        Observation(noisy, 1, seen.image_shape),
        budget=Budget(),
        generator=generator,
    )
    assert found.state == "plateau"
    assert "approximate" in found.reason
    assert found.images is not None
    assert (Ssim().score(batch.images, found.images)[0].value or 0) > least


def test_a_penalty_on_the_weights_does_not_hide_the_image() -> None:
    def step(model: nn.Module, inputs: Tensor, labels: Tensor | None) -> Tensor:
        assert labels is not None
        penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return F.cross_entropy(model(inputs), labels) + 1e-4 * penalty

    auditor = Auditor(
        perceptron().train(),
        training_step=step,
        mean=0.5,
        std=0.25,
        client=Client(batch_size=1),
        attacks=["closed_form"],
    )
    result = auditor.audit((shipped_images(1, (3, 16, 16)), [1]))
    assert result.verdict.word == "leaks"
