"""Several local steps: what is sent is what an ordinary training loop moves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Client
from privaudit._pixels import Normalisation
from privaudit.distances import Cosine
from privaudit.errors import ConfigError, UnsupportedModelError
from privaudit.exposure import GradientExposure, LocalSteps, relative_error
from privaudit.exposure.predict import observed_as, predict
from privaudit.types import Batch

SIDE = 8


def mlp(p: float = 0.3, *, norm: bool = False) -> nn.Module:
    torch.manual_seed(1)
    middle: list[nn.Module] = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 16), *middle, nn.GELU(), nn.Dropout(p),
        nn.Linear(16, 16), nn.GELU(), nn.Dropout(p), nn.Linear(16, 4),
    )  # fmt: skip


def images(count: int) -> Batch:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.rand(count, 1, SIDE, SIDE, generator=generator)
    return Batch(pixels, torch.arange(count) % 4)


def exposure(local: LocalSteps | None, **other: Any) -> GradientExposure:
    return GradientExposure(Normalisation(), local=local, **other)


def trained(
    model: nn.Module, batch: Batch, steps: int, make: Any, lr: float
) -> dict[str, Tensor]:
    """(before - after) / lr of an ordinary loop in float64, dropout as torch draws."""
    twin = copy.deepcopy(model).train()
    before = {n: p.detach().clone() for n, p in twin.named_parameters()}
    optimiser = make(twin.parameters())
    torch.manual_seed(7)
    for pixels, labels in zip(
        batch.images.chunk(steps), _labels(batch).chunk(steps), strict=True
    ):
        optimiser.zero_grad()
        F.cross_entropy(twin(pixels), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {n: (before[n] - p.detach()) / lr for n, p in twin.named_parameters()}


def _labels(batch: Batch) -> Tensor:
    assert batch.labels is not None
    return batch.labels


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("norm", [False, True])
def test_delta_is_that_of_torch(momentum: float, norm: bool) -> None:
    model, batch = mlp(norm=norm), images(12)
    local = LocalSteps(3, 0.5, "sgd", momentum)
    sent = exposure(local).observe(model, batch, seed=7).observation
    real = trained(
        model, batch, 3, lambda p: torch.optim.SGD(p, lr=0.5, momentum=momentum), 0.5
    )
    assert sent.batch_size == 12
    assert relative_error(sent.gradients, real) < 2e-6
    one = exposure(None).observe(model, batch, seed=7).observation
    assert relative_error(one.gradients, real) > 0.1


def test_one_adamw_step_is_that_of_torch_and_shows_signs() -> None:
    model, batch = mlp(), images(2)
    make = lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0)  # noqa: E731
    real = trained(model, batch, 1, make, 0.01)
    local = LocalSteps(1, 0.01, "adamw")
    sent = exposure(local).observe(model, batch, seed=7).observation
    assert relative_error(sent.gradients, real) < 1e-4
    values = torch.cat([g.flatten() for g in sent.gradients.values()])
    assert float((values.abs() - 1).abs().lt(1e-2).float().mean()) > 0.5


@pytest.mark.parametrize(
    "local",
    [LocalSteps(3, 0.5), LocalSteps(2, 0.3, "sgd", 0.9), LocalSteps(1, 1.0, "adamw")],
)
@pytest.mark.parametrize("norm", [False, True])
def test_at_the_truth_and_its_masks_the_same_is_sent(
    local: LocalSteps, norm: bool
) -> None:
    model, batch = mlp(norm=norm), images(6)
    client = exposure(local).observe(model, batch, seed=5)
    again = exposure(local).gradient(model, batch, tape=client.tape)
    assert relative_error(again, client.observation.gradients) < 1e-6
    assert [d.step for d in client.tape] == sorted(
        list(range(local.count)) * (len(client.tape) // local.count)
    )
    names = [d.name for d in client.tape]
    assert len(set(names)) == len(names)
    if local.sums_gradients:
        guess = predict(exposure(local), model, batch, client.tape)
        seen = observed_as(guess, client.observation.gradients)
        assert float(Cosine().measure(guess, seen).detach()) < 1e-5
        wrong = predict(exposure(local), model, batch, None)
        assert float(Cosine().measure(wrong, seen).detach()) > 1e-3


def test_the_graph_goes_through_all_steps() -> None:
    """A finite difference of what is sent, by a pixel of the first step's image."""
    model = mlp(0.0).double()
    local = LocalSteps(3, 0.5, "sgd", 0.9)
    pixels = images(3).images.double()
    labels = torch.tensor([0, 1, 2])
    weights: dict[str, Tensor] = {}

    def loss(moved: Tensor) -> Tensor:
        sent = predict(exposure(local), model, Batch(moved, labels), None).dense
        if not weights:
            weights.update({n: torch.randn_like(g) for n, g in sent.items()})
        return torch.stack([(weights[n] * g).sum() for n, g in sent.items()]).sum()

    given = pixels.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(given), given)
    step = torch.zeros_like(pixels)
    step[0, 0, 3, 3] = 1e-5
    measured = float((loss(pixels + step) - loss(pixels - step)).detach()) / 2e-5
    assert measured == pytest.approx(float(slope[0, 0, 3, 3]), rel=1e-5)
    # Part of that slope comes from the later steps, at the weights that it moved.
    lone = predict(
        exposure(LocalSteps(1, 0.5, "sgd", 0.9)),
        model,
        Batch(given[:1], labels[:1]),
        None,
    ).dense
    (first,) = torch.autograd.grad(
        torch.stack([(weights[n] * g).sum() for n, g in lone.items()]).sum(), given
    )
    assert not torch.allclose(first[0], slope[0], rtol=1e-2)


def test_the_users_model_is_untouched() -> None:
    model = mlp(norm=True)
    tied = nn.Sequential(model, nn.Linear(4, 4))
    tied[1].weight = nn.Parameter(torch.eye(4))
    before = copy.deepcopy(tied.state_dict())
    kept = {n: id(p) for n, p in tied.named_parameters()}
    exposure(LocalSteps(2, 0.5)).observe(tied, images(8), seed=0)
    assert {n: id(p) for n, p in tied.named_parameters()} == kept
    for name, value in tied.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_tied_frozen_and_unused_parameters() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.Linear(4, 4)
            self.a, self.b = nn.Linear(SIDE * SIDE, 16), nn.Linear(16, 16)
            self.c = nn.Linear(16, 16)
            self.c.weight = self.b.weight
            self.head = nn.Linear(16, 4)
            self.head.weight.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            x = self.b(self.a(x.flatten(1)).tanh()).tanh()
            return self.head(self.c(x).tanh())  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, batch = Odd(), images(4)
    sent = exposure(LocalSteps(2, 0.5)).observe(model, batch, seed=0).observation
    real = trained(model, batch, 2, lambda p: torch.optim.SGD(p, lr=0.5), 0.5)
    assert set(sent.gradients) == {
        "a.weight", "a.bias", "b.weight", "b.bias", "c.bias", "head.bias",
    }  # fmt: skip
    moved = {n: g for n, g in real.items() if n in sent.gradients}
    assert relative_error(sent.gradients, moved) < 2e-6


def test_power_iterations_of_spectral_norm_go_on_from_step_to_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(SIDE * SIDE, 16)),
        nn.Tanh(),
        nn.Linear(16, 4),
    )
    sent = exposure(LocalSteps(2, 0.5)).observe(model, images(4), seed=0).observation
    real = trained(model, images(4), 2, lambda p: torch.optim.SGD(p, lr=0.5), 0.5)
    values = dict(zip(sent.gradients, real.values(), strict=True))
    assert relative_error(sent.gradients, values) < 2e-6


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"local_steps": 2}, r"Client.lr: expected the learning rate of 2"),
        ({"local_steps": 2, "lr": 1.0, "optimizer": "adamw"},
         r"Client.local_steps: expected one local step of AdamW, got 2"),
        ({"optimizer": "adamw", "momentum": 0.9}, r"momentum belongs to SGD"),
    ],
)  # fmt: skip
def test_clients_that_cannot_be_audited(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Client(**given)


def test_images_that_do_not_fill_the_steps() -> None:
    client = Client(local_steps=2, batch_size=2, lr=1.0)
    with pytest.raises(ConfigError, match=r"2 local steps a client of 2 each.*got 6"):
        Auditor(mlp(), client=client).audit((images(6).images, images(6).labels))
    assert client.images_of(8) == 4
    assert Client(local_steps=2, lr=1.0).images_of(8) == 8
    with pytest.raises(ConfigError, match="Pass a multiple of 2"):
        Client(local_steps=2, lr=1.0).images_of(1)


def test_token_ids_take_one_step() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    auditor = Auditor(model, client=Client(local_steps=2, lr=1.0))
    with pytest.raises(ConfigError, match="one step of SGD, since the sample is token"):
        auditor.audit((torch.randint(0, 9, (2, 3)), torch.tensor([0, 1])))


def test_exposures_of_several_steps_refuse_token_ids() -> None:
    from privaudit.types import TokenBatch

    ids = torch.randint(0, 9, (2, 3))
    batch = TokenBatch(ids, torch.tensor([0, 1]), torch.ones_like(ids).bool())
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(UnsupportedModelError, match="expected images, got token ids"):
        exposure(LocalSteps(2, 1.0)).gradient(model, batch)
