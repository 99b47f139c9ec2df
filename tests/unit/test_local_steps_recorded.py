"""A recorded round of several steps is attacked like a live one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Budget, Client, record_step
from privaudit._controls import shipped_images
from privaudit.errors import ConfigError
from privaudit.recording import Update

SIDE = 16


def model_of(p: float = 0.5) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 200), nn.GELU(), nn.Dropout(p),
        nn.Linear(200, 10),
    )  # fmt: skip


def sample(count: int) -> tuple[Tensor, Tensor]:
    return shipped_images(count, (1, SIDE, SIDE)), torch.arange(count) % 10


def trained(
    model: nn.Module, optimiser: torch.optim.Optimizer, steps: int, count: int
) -> None:
    images, labels = sample(count)
    for x, y in zip(images.chunk(steps), labels.chunk(steps), strict=True):
        optimiser.zero_grad()
        F.cross_entropy(model((x - 0.5) / 0.25), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def recorded(masks: bool = False) -> Update:
    model = model_of()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    with record_step(model, local_steps=2, masks=masks) as step:
        trained(model, optimiser, 2, 4)
    return step.update


def auditor(**client: Any) -> Auditor:
    return Auditor(
        model_of(), mean=[0.5], std=[0.25], client=Client(**client),
        budget=Budget(seconds=15), attacks=["sparse_factorization"],
    )  # fmt: skip


def test_a_recorded_round_leaks_and_its_truth_is_reached(tmp_path: Path) -> None:
    recorded(masks=True).save(tmp_path / "round.safetensors", masks=True)
    result = auditor().attack_gradient(
        tmp_path / "round.safetensors", batch_size=2, truth=sample(4)
    )
    preflight = result.record.preflight
    assert preflight.loss_at_truth is not None
    assert preflight.loss_at_truth < 1e-4, "the recorded steps are repeated"
    assert result.record.config.client.local_steps == 2
    assert result.record.config.client.momentum == 0.9
    assert result.verdict.word == "leaks"
    assert "weight difference after 2 local" in result.record.threat_model.exposure


def test_a_round_is_that_of_the_state_dicts() -> None:
    model, update = model_of(), recorded()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    torch.manual_seed(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    with record_step(model, local_steps=2) as step:
        trained(model, optimiser, 2, 4)
    own = Update.from_delta(before, model.state_dict(), lr=0.5, local_steps=2)
    for name, value in own.gradients.items():
        assert torch.equal(value, step.update.gradients[name])
    assert step.update.facts.local_steps == 2
    assert step.update.facts.image_shape == (1, SIDE, SIDE)
    assert update.facts.momentum == 0.9
    assert len(recorded(masks=True).masks) == 2


@pytest.mark.parametrize(
    ("make", "steps", "match"),
    [
        (lambda p: torch.optim.AdamW(p), 2, "expected one local step of AdamW, got 2"),
        (lambda p: torch.optim.RMSprop(p), 2, "torch.optim.SGD, got RMSprop"),
        (lambda p: torch.optim.SGD(p, lr=1, weight_decay=0.1), 2, "weight_decay=0"),
        (lambda p: torch.optim.SGD(p, lr=1), 4, "4 steps of an optimiser.*got 2"),
    ],
)
def test_rounds_that_cannot_be_repeated(make: Any, steps: int, match: str) -> None:
    model = model_of()
    with pytest.raises(ConfigError, match=match), record_step(model, local_steps=steps):
        trained(model, make(model.parameters()), 2, 4)


def test_momentum_of_earlier_steps_is_refused() -> None:
    model = model_of()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    trained(model, optimiser, 1, 2)
    with (
        pytest.raises(ConfigError, match="momentum that starts at zero"),
        record_step(model, local_steps=2),
    ):
        trained(model, optimiser, 2, 4)


def test_a_rate_that_changes_is_refused() -> None:
    model = model_of()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    slower = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
    optimiser.register_step_post_hook(lambda *_: slower.step())
    with (
        pytest.raises(ConfigError, match="one learning rate and momentum throughout"),
        record_step(model, local_steps=2),
    ):
        trained(model, optimiser, 2, 4)


def test_deltas_of_several_adamw_steps_and_other_clients_are_refused() -> None:
    state = model_of().state_dict()
    with pytest.raises(ConfigError, match="one local step of AdamW, got 3"):
        Update.from_delta(state, state, lr=0.1, local_steps=3, optimizer="adamw")
    with pytest.raises(ConfigError, match=r"client.lr: expected 0.5, as in the rec"):
        auditor(lr=0.1).attack_gradient(recorded(), batch_size=2, truth=sample(4))
    with pytest.raises(ConfigError, match="2 local steps a client of 2 each, got 2"):
        auditor().attack_gradient(recorded(), batch_size=2, truth=sample(2))
