"""The factored gradient is the gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.distances import Cosine
from privaudit.exposure import GradientExposure
from privaudit.exposure.predict import GradientGuess, observed_as, predict
from privaudit.types import Batch
from tests.models.dia import ViT, lenet, mlp

EXPOSURE = GradientExposure(Normalisation())


class Twice(nn.Module):
    """One linear layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(48, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x.flatten(1)))
        return self.head(torch.tanh(self.layer(h)))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "mlp": (lambda: mlp(0.5, size=8), 8),
    "mlp with bias": (lambda: mlp(0.5, size=8, bias=True), 8),
    "vit": (lambda: ViT(0.25, size=16), 16),
    "lenet": (lambda: lenet(0.5, size=16), 16),
    "one layer twice": (Twice, 4),
}


def make(name: str, size: int) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    build, side = MODELS[name]
    images = torch.rand(size, 3, side, side, dtype=torch.double)
    return build().double(), Batch(images, torch.arange(size) % 10)


def dense(guess: GradientGuess) -> dict[str, Tensor]:
    return dict(guess.dense) | {n: r.dense() for n, r in guess.rows.items()}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_it_equals_backward_under_the_same_masks(name: str, size: int) -> None:
    model, batch = make(name, size)
    step = EXPOSURE.observe(model, batch, seed=1)
    guess = predict(EXPOSURE, model, batch, step.tape)
    found = dense(guess)
    assert set(found) == set(step.observation.gradients)
    for key, value in step.observation.gradients.items():
        assert torch.allclose(found[key], value, atol=1e-12), key


def test_large_linear_layers_are_factored_and_small_ones_are_not() -> None:
    model, batch = make("mlp", 1)
    assert set(predict(EXPOSURE, model, batch, None).rows) == {
        n for n, p in model.named_parameters() if p.dim() == 2
    }
    reference = predict(EXPOSURE, model, batch, None, factor=False)
    assert not reference.rows


@pytest.mark.parametrize("name", MODELS)
def test_distance_and_attack_gradient_equal_the_reference(name: str) -> None:
    model, batch = make(name, 2)
    step = EXPOSURE.observe(model, batch, seed=1)
    torch.manual_seed(2)
    other = torch.rand_like(batch.images)

    def attack_gradient(factor: bool) -> tuple[Tensor, Tensor]:
        images = other.clone().requires_grad_()
        guess = predict(
            EXPOSURE, model, Batch(images, batch.labels), step.tape, factor=factor
        )
        observed = observed_as(guess, step.observation.gradients)
        loss = Cosine().measure(guess, observed)
        (slope,) = torch.autograd.grad(loss, images)
        return loss.detach(), slope

    (fast, fast_slope), (slow, slow_slope) = (
        attack_gradient(True),
        attack_gradient(False),
    )
    flat = torch.cat([g.flatten() for g in step.observation.gradients.values()])
    guess = dense(predict(EXPOSURE, model, Batch(other, batch.labels), step.tape))
    mine = torch.cat([guess[n].flatten() for n in step.observation.gradients]).detach()
    plain = 1 - F.cosine_similarity(mine, flat, dim=0)
    assert float(slow) == pytest.approx(float(plain), rel=1e-6)
    assert float(fast) == pytest.approx(float(slow), rel=1e-6)
    assert torch.allclose(fast_slope, slow_slope, rtol=1e-4, atol=1e-9)


def test_the_cosine_of_a_zero_guess_has_a_finite_gradient() -> None:
    model, batch = make("mlp", 1)
    step = EXPOSURE.observe(model, batch, seed=1)
    images = torch.zeros_like(batch.images).requires_grad_()
    guess = predict(EXPOSURE, model, Batch(images, batch.labels), step.tape)
    loss = Cosine().measure(guess, observed_as(guess, step.observation.gradients))
    (slope,) = torch.autograd.grad(loss, images)
    assert slope.isfinite().all()
