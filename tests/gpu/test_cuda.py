"""What only a CUDA device can show. `make gpu`; skipped with a reason elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._guard import pristine
from privaudit._pixels import Normalisation
from privaudit.attacks import ATTACKS
from privaudit.config import Budget
from privaudit.exposure import GradientExposure, relative_error
from privaudit.tape import Recorder
from privaudit.types import AttackerKnowledge, Batch, Observation, Target
from tests.models.dia import ViT, mlp

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)
EXPOSURE = GradientExposure(Normalisation((0.5,) * 3, (0.25,) * 3))


def case(device: str) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    model = mlp(0.25, size=16)
    images = torch.rand(1, 3, 16, 16)
    return model.to(device), Batch(images.to(device), torch.tensor([3], device=device))


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_gives_on_cuda_what_it_gives_on_a_cpu(name: str) -> None:
    found = {}
    model, batch = case("cpu")
    step = EXPOSURE.observe(model, batch, seed=0)
    for device in ("cpu", "cuda"):
        model, batch = case(device)
        moved = {n: g.to(device) for n, g in step.observation.gradients.items()}
        values = [None if d.value is None else d.value.to(device) for d in step.tape]
        known = AttackerKnowledge(batch.labels, step.tape.with_values(values))
        outcome = (
            ATTACKS[name]
            .tiny()
            .run(
                Target(model, EXPOSURE, known),
                Observation(moved, 1, step.observation.image_shape),
                budget=Budget(),
                generator=torch.Generator().manual_seed(0),
            )
        )
        assert outcome.images is not None
        found[device] = outcome.images.detach().cpu()
    # Searches amplify rounding: the same picture, not the same bits.
    apart = (found["cpu"] - found["cuda"]).abs().mean()
    assert float(apart) < 0.02


@pytest.mark.parametrize(
    "build", [lambda: mlp(0.25, size=16), lambda: ViT(0.25, size=16)]
)
def test_masks_are_recorded_and_replayed_on_cuda(build: object) -> None:
    torch.manual_seed(0)
    model = build().cuda()  # type: ignore[operator]
    batch = Batch(torch.rand(2, 3, 16, 16).cuda(), torch.tensor([1, 2]).cuda())
    step = EXPOSURE.observe(model, batch, seed=0)
    assert step.tape.active
    assert all(d.value is not None and d.value.is_cuda for d in step.tape.active)
    again = EXPOSURE.gradient(model, batch, tape=step.tape)
    assert relative_error(again, step.observation.gradients) < 1e-5


class Fused(nn.Module):
    """Attention that runs in one kernel on CUDA, dropout inside."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


def test_dropout_inside_fused_attention_is_seen_on_cuda() -> None:
    model = Fused().cuda().half()
    x = torch.rand(1, 2, 8, 16, device="cuda", dtype=torch.half)
    with Recorder(model) as recorder:
        out = model(x)
    assert [d.kind for d in recorder.tape] == ["attention-prob dropout"]
    with Recorder(model, recorder.tape):
        assert torch.equal(model(x), out)


def test_the_census_sees_native_dropout_on_cuda() -> None:
    x = torch.rand(64, device="cuda")
    with Recorder(nn.Identity()) as recorder:
        torch.native_dropout(x, 0.5, True)
    assert len(recorder.tape) == 1
    assert recorder.tape.draws[0].hidden


def test_lstm_dropout_on_cuda_is_listed() -> None:
    model = nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True).cuda()
    with Recorder(model) as recorder:
        model(torch.rand(2, 3, 4, device="cuda"))
    assert recorder.tape.hidden


def test_an_autocast_step_is_replayed_under_autocast() -> None:
    model, batch = case("cuda")

    def step(module: nn.Module, inputs: Tensor, labels: Tensor | None) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            output = module(inputs)
        assert labels is not None
        return F.cross_entropy(output.float(), labels)

    exposure = GradientExposure(EXPOSURE.normalisation, training_step=step)
    model.train()
    seen = exposure.observe(model, batch, seed=0)
    again = exposure.gradient(model, batch, tape=seen.tape)
    assert relative_error(again, seen.observation.gradients) < 1e-4
    plain = EXPOSURE.gradient(model, batch, tape=seen.tape)
    assert relative_error(plain, seen.observation.gradients) > 1e-4


def test_random_states_of_cuda_come_back() -> None:
    model, batch = case("cuda")
    before = torch.cuda.get_rng_state_all()
    with pristine(model):
        EXPOSURE.observe(model, batch, seed=5)
        torch.rand(3, device="cuda")
    after = torch.cuda.get_rng_state_all()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
