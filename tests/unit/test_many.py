"""Many victims at once: the same gradients as one at a time, or a refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privaudit import _runner
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit._runner import Client, Clock, run
from privaudit.attacks import (
    Attack,
    DropoutInversion,
    InvertingGradients,
    WellInformed,
)
from privaudit.attacks._minimise import Objective, Schedule, Unknown
from privaudit.attacks._minimise_many import minimise_many
from privaudit.config import Budget
from privaudit.exposure import GradientExposure
from privaudit.exposure.many import NotSeparable, observed_many, predict_many
from privaudit.exposure.predict import factored, predict
from privaudit.tape import Tape
from privaudit.types import AttackerKnowledge, Batch, Target
from tests.models.dia import ViT, lenet, mlp

EXPOSURE = GradientExposure(Normalisation((0.5,), (0.25,)))
VICTIMS = 3


def _biased(p: float, **_: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 40), nn.GELU(), nn.Dropout(p),
        nn.LayerNorm(40), nn.Linear(40, 10),
    )  # fmt: skip


MODELS = [mlp, lenet, ViT, _biased]


def _victims(
    build: Callable[..., nn.Module], size: int, dtype: torch.dtype
) -> tuple[nn.Module, list[Batch], list[Tape], list[dict[str, Tensor]]]:
    """Models, guesses, masks of the guesses, and observed gradients."""
    torch.manual_seed(0)
    model = build(0.25, channels=3, size=16).to(dtype)
    images = shipped_images(VICTIMS * size, (3, 16, 16)).to(dtype)
    labels = torch.arange(VICTIMS * size) % 10
    batches, tapes, seen = [], [], []
    for v in range(VICTIMS):
        rows = slice(v * size, (v + 1) * size)
        step = EXPOSURE.observe(model, Batch(images[rows], labels[rows]), seed=v)
        guess = (images[rows] + 0.2 * torch.randn_like(images[rows])).clamp(0, 1)
        batches.append(Batch(guess, labels[rows]))
        tapes.append(step.tape)
        seen.append({n: g.to(dtype) for n, g in step.observation.gradients.items()})
    return model, batches, tapes, seen


def _joined(tapes: list[Tape]) -> Tape:
    values = []
    for draws in zip(*tapes, strict=True):
        parts = [d.value for d in draws]
        assert all(p is not None for p in parts)
        values.append(torch.cat([p for p in parts if p is not None]))
    return tapes[0].with_values(values)


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-8), (torch.float32, 1e-5)]
)
def test_loss_and_its_gradient_are_those_of_single_runs(
    build: Callable[..., nn.Module], size: int, dtype: torch.dtype, close: float
) -> None:
    model, batches, tapes, seen = _victims(build, size, dtype)
    images = torch.cat([b.images for b in batches]).requires_grad_()
    labels = torch.cat([b.labels for b in batches if b.labels is not None])
    tape = _joined(tapes)
    together = predict_many(
        EXPOSURE, model, Batch(images, labels), tape, victims=VICTIMS
    )
    observed = observed_many(together, seen)
    loss = 1 - together.inner(observed) / (
        together.square().sqrt() * observed.square().sqrt()
    )
    (moves,) = torch.autograd.grad(loss.sum(), [images])
    for v, (batch, own) in enumerate(zip(batches, tapes, strict=True)):
        alone = batch.images.clone().requires_grad_()
        guess = predict(EXPOSURE, model, Batch(alone, batch.labels), own, factor=False)
        dot = sum((guess.dense[n] * g).sum() for n, g in seen[v].items())
        mine = sum(guess.dense[n].square().sum() for n in seen[v])
        theirs = sum(g.square().sum() for g in seen[v].values())
        assert isinstance(dot, Tensor)
        assert isinstance(mine, Tensor)
        assert isinstance(theirs, Tensor)
        single = 1 - dot / (mine.sqrt() * theirs.sqrt())
        (move,) = torch.autograd.grad(single, [alone])
        assert abs(float(loss[v].detach() - single.detach())) < close
        own_moves = moves[v * size : (v + 1) * size]
        assert float((own_moves - move).norm() / move.norm()) < 10 * close


def test_coupled_and_unknown_uses_are_refused() -> None:
    batch = Batch(shipped_images(2, (3, 16, 16)), torch.tensor([0, 1]))
    norm = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    norm.append(nn.Linear(784, 10))
    with pytest.raises(NotSeparable, match="batch_norm couples"):
        predict_many(EXPOSURE, norm, batch, None, victims=2)

    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.out = nn.Parameter(torch.ones(768)), nn.Linear(768, 10)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(x.flatten(1) * self.gain)
            return out

    with pytest.raises(NotSeparable, match="gain is used in a way"):
        predict_many(EXPOSURE, Gain(), batch, None, victims=2)
    layer = nn.Linear(768, 768)
    twice = nn.Sequential(nn.Flatten(), layer, nn.GELU(), layer, nn.Linear(768, 10))
    with pytest.raises(NotSeparable, match="used more than once"):
        predict_many(EXPOSURE, twice, batch, None, victims=2)


def test_factors_of_few_and_of_many_rows_are_exact() -> None:
    generator = torch.Generator().manual_seed(1)
    for rank in (1, 5, 40):
        a = torch.randn(60, rank, generator=generator)
        b = torch.randn(rank, 80, generator=generator)
        matrix = (a @ b).double()
        for expected in (1, None):
            found = factored(matrix, expected)
            rest = found.delta.T @ found.inputs - matrix
            assert float(rest.norm() / matrix.norm()) < 1e-6
            assert len(found.delta) == rank


@pytest.mark.parametrize("attack", [DropoutInversion, InvertingGradients, WellInformed])
def test_clients_together_end_as_they_do_alone(
    attack: type[Attack], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = shipped_images(VICTIMS, (3, 16, 16))
    torch.manual_seed(0)
    model = mlp(0.25, channels=3, size=16)
    clients = []
    for v in range(VICTIMS):
        batch = Batch(images[v : v + 1], torch.tensor([v]))
        step = EXPOSURE.observe(model, batch, seed=v)
        clients.append(Client(batch, step, range(v, v + 1)))
    short = attack.model_validate({"schedule": {"iterations": 60}})
    found = []
    for together in (True, False):
        monkeypatch.setattr(_runner, "MANY", 64 if together else 1)
        target = Target(model, EXPOSURE, AttackerKnowledge())
        found.append(
            run(
                short, target, clients, labels_known=True,
                clock=Clock(Budget()), seed=0,
            ).outcomes
        )  # fmt: skip
    for many, one in zip(*found, strict=True):
        assert many.search is not None
        assert one.search is not None
        assert many.search.path == f"{VICTIMS} clients at once"
        assert one.search.path == "one client"
        assert many.state == one.state
        assert many.search.iterations == one.search.iterations == 60
        assert many.search.unknowns == one.search.unknowns
        assert many.search.loss_start == pytest.approx(one.search.loss_start, rel=1e-4)
        assert many.search.loss_final == pytest.approx(one.search.loss_final, rel=0.1)
        assert many.images is not None
        assert one.images is not None
        assert float((many.images - one.images).abs().mean()) < 0.02


def test_what_breaks_together_is_noted_and_done_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError("too many")

    monkeypatch.setattr(InvertingGradients, "run_many", broken)
    model, images = mlp(0.25, channels=3, size=16), shipped_images(2, (3, 16, 16))
    clients = []
    for v in range(2):
        batch = Batch(images[v : v + 1], torch.tensor([v]))
        step = EXPOSURE.observe(model, batch, seed=v)
        clients.append(Client(batch, step, range(v, v + 1)))
    short = InvertingGradients(schedule=Schedule(iterations=5))
    ran = run(
        short, Target(model, EXPOSURE, AttackerKnowledge()), clients,
        labels_known=True, clock=Clock(Budget()), seed=0,
    )  # fmt: skip
    for one in ran.outcomes:
        assert one.images is not None
        assert "clients together broke: MemoryError: too many" in one.notes


def test_one_that_breaks_ends_alone() -> None:
    """A loss that is not a number for one victim leaves the others their best."""
    start = torch.full((3, 2), 4.0, requires_grad=True)
    poison = torch.tensor([0.0, float("nan"), 0.0])

    def objective() -> Objective:
        loss = start.square().sum(1) + poison
        return Objective(loss, loss)

    runs = minimise_many(
        objective,
        [Unknown([start], lambda v: v)],
        victims=3,
        schedule=Schedule(iterations=200, goal=1e-3),
        budget=Budget(),
    )
    assert [r.end for r in runs] == ["goal", "numerical", "goal"]
    assert runs[0].iterations == runs[2].iterations < 200
    assert runs[0].total_best < 1e-3
    assert runs[1].total_best == float("inf")
    assert torch.equal(runs[0].best[0], runs[2].best[0])


def test_each_shrinks_its_steps_on_its_own_plateau() -> None:
    """The flat one shrinks; the one that still falls does not."""
    values = torch.tensor([[1.0], [1000.0]], requires_grad=True)

    def objective() -> Objective:
        loss = torch.stack([values[0, 0] * 0 + 1, values[1, 0].abs()])
        return Objective(loss, loss)

    runs = minimise_many(
        objective,
        [Unknown([values], lambda v: v)],
        victims=2,
        schedule=Schedule(iterations=300, patience=20, give_up=100, goal=0.5),
        budget=Budget(),
    )
    assert runs[0].end == "plateau"
    assert runs[0].iterations < 150
    assert runs[1].end == "iterations"
    assert runs[1].total_best == pytest.approx(1000 - 299 * 0.1, abs=0.5)
