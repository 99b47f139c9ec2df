"""Replayed iterations are the iterations, and what cannot be replayed is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import _replay
from privaudit.attacks._minimise import Objective, Schedule, Unknown, minimise
from privaudit.attacks._replay import START, WORTH, Slopes
from privaudit.config import Budget
from privaudit.distances import Cosine
from privaudit.exposure import GradientExposure
from privaudit.exposure.many import ManyGuess, observed_many, predict_many
from privaudit.exposure.predict import GradientGuess, observed_as, predict
from privaudit.priors import TotalVariation
from privaudit.types import Batch
from tests.models.dia import ViT, lenet, mlp

EXPOSURE = GradientExposure(Normalisation((0.5,), (0.25,)))
MANY = START + 2 * WORTH
PRECISION = [(torch.float64, 1e-8), (torch.float32, 1e-5)]


class Scene:
    """A client's gradient, and an attack's first guess at it."""

    def __init__(self, build: Callable[..., nn.Module], dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.model = build(0.25, channels=3, size=16).to(dtype)
        self.images = shipped_images(2, (3, 16, 16)).to(dtype)
        self.labels = torch.tensor([3, 7])
        self.step = EXPOSURE.observe(self.model, self.client(0), seed=1)
        self.inputs = torch.randn_like(self.images[:1]).requires_grad_()
        self.masks = [
            torch.rand_like(d.value).requires_grad_()
            for d in self.step.tape
            if d.value is not None
        ]
        self.leaves = [self.inputs, *self.masks]
        self.seen: dict[bool, GradientGuess] = {}

    def client(self, index: int) -> Batch:
        rows = slice(index, index + 1)
        return Batch(self.images[rows], self.labels[rows])

    def objective(self, *, factor: bool = True) -> Objective:
        batch = Batch(self.inputs, self.labels[:1])
        tape = self.step.tape.with_values(self.masks)
        guess = predict(EXPOSURE, self.model, batch, tape, factor=factor)
        if factor not in self.seen:
            self.seen[factor] = observed_as(guess, self.step.observation.gradients)
        loss = Cosine().measure(guess, self.seen[factor])
        return Objective(loss, loss + 1e-3 * TotalVariation().penalty(self.inputs))


def traced(slopes: Slopes) -> Slopes:
    """``slopes`` where the trace has just been made, or refused."""
    for _ in range(START):
        slopes()
    return slopes


def moved(leaves: list[Tensor]) -> None:
    with torch.no_grad():
        for leaf in leaves:
            leaf.add_(0.1 * torch.randn_like(leaf))


def apart(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> float:
    pairs = zip(some, others, strict=True)
    return max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)


@pytest.mark.parametrize("build", [mlp, lenet, ViT])
@pytest.mark.parametrize(("dtype", "close"), PRECISION)
def test_a_replay_equals_the_reference_that_forms_every_gradient(
    build: Callable[..., nn.Module], dtype: torch.dtype, close: float
) -> None:
    scene = Scene(build, dtype)
    slopes = traced(Slopes(scene.objective, scene.leaves, MANY))
    assert slopes.way == "replayed", slopes.refused
    moved(scene.leaves)
    slopes()  # The first replay is a check, and answers with the plain iteration.
    replayed = slopes()
    reference = Slopes(lambda: scene.objective(factor=False), scene.leaves, 1)()
    assert apart((replayed.total,), (reference.total,)) < close
    assert apart(replayed.gradients, reference.gradients) < close
    assert slopes.way == "replayed"


@pytest.mark.parametrize(("dtype", "close"), PRECISION)
def test_several_clients_are_replayed_each_as_its_own_reference(
    dtype: torch.dtype, close: float
) -> None:
    scene = Scene(mlp, dtype)
    steps = [EXPOSURE.observe(scene.model, scene.client(v), seed=v) for v in (0, 1)]
    inputs = torch.randn_like(scene.images).requires_grad_()
    sent = [s.observation.gradients for s in steps]
    observed: list[ManyGuess] = []

    def together() -> Objective:
        batch = Batch(inputs, scene.labels)
        guess = predict_many(EXPOSURE, scene.model, batch, None, victims=2)
        if not observed:
            observed.append(observed_many(guess, sent))
        seen = observed[0]
        loss = Cosine.of(guess.inner(seen), guess.square(), seen.square())
        return Objective(loss, loss)

    slopes = traced(Slopes(together, [inputs], MANY))
    assert slopes.way == "replayed", slopes.refused
    moved([inputs])
    slopes()
    replayed = slopes()
    for v, step in enumerate(steps):
        alone = inputs[v : v + 1].detach().clone().requires_grad_()
        batch = Batch(alone, scene.labels[v : v + 1])
        guess = predict(EXPOSURE, scene.model, batch, None, factor=False)
        seen = observed_as(guess, step.observation.gradients)
        loss = Cosine().measure(guess, seen)
        (slope,) = torch.autograd.grad(loss, [alone])
        assert abs(float(replayed.total[v] - loss.detach())) < close
        own = replayed.gradients[0][v : v + 1]
        assert float((own - slope).norm() / slope.norm()) < close


def test_a_replayed_descent_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for worth in (WORTH, 10**9):
        monkeypatch.setattr(_replay, "WORTH", worth)
        x = torch.tensor([0.0, 5.0], requires_grad=True)
        target = torch.tensor([3.0, -2.0])

        def objective(x: Tensor = x, target: Tensor = target) -> Objective:
            loss = ((x - target).square() * torch.sigmoid(x)).sum()
            return Objective(loss, loss)

        found.append(
            minimise(
                objective,
                [Unknown([x], lambda v: v)],
                schedule=Schedule(goal=-1, iterations=MANY),
                budget=Budget(),
            )
        )
    replayed, plain = found
    assert (replayed.way, plain.way) == ("replayed", "plain")
    assert replayed.curve == plain.curve
    assert torch.equal(replayed.best[0], plain.best[0])


def test_short_runs_are_not_traced() -> None:
    x = torch.ones(2, requires_grad=True)
    slopes = traced(Slopes(lambda: _square(x), [x], START + WORTH - 1))
    assert slopes.way == "plain"
    assert not slopes.refused


def test_runs_whose_time_is_up_before_it_pays_are_not_traced() -> None:
    x = torch.ones(2, requires_grad=True)
    late = traced(Slopes(lambda: _square(x), [x], MANY, deadline=0.0))
    assert late.way == "plain"
    early = traced(Slopes(lambda: _square(x), [x], MANY, deadline=float("inf")))
    assert early.way == "replayed"


def _square(x: Tensor) -> Objective:
    loss = x.square().sum()
    return Objective(loss, loss)


def _by_value(x: Tensor) -> Tensor:
    return x.square().sum() if float(x.detach().sum()) > 0 else x.abs().sum()


def _by_size(x: Tensor) -> Tensor:
    return x[x > 0.5].square().sum()


def _random(x: Tensor) -> Tensor:
    return (x * torch.rand_like(x)).sum()


KEPT = torch.zeros(())


def _writing(x: Tensor) -> Tensor:
    KEPT.add_(x.detach().sum())
    return (x * KEPT).sum()


def _through_a_view(x: Tensor) -> Tensor:
    y = 2 * x
    y[:1].mul_(3.0)
    return y.square().sum()


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (_by_value, "get value out of a tracing tensor"),
        (_by_size, "size depends on values"),
        (_random, "draws at random"),
        (_writing, "writes to what it is given"),
        (_through_a_view, "writes to what it is given"),
    ],
)
def test_what_may_differ_next_time_is_not_replayed(
    loss: Callable[[Tensor], Tensor], why: str
) -> None:
    x = torch.ones(2, requires_grad=True)

    def objective() -> Objective:
        value = loss(x)
        return Objective(value, value)

    slopes = traced(Slopes(objective, [x], MANY))
    assert slopes.way == "plain"
    assert why in slopes.refused
    assert slopes().gradients[0].shape == x.shape


def _plain_square(x: Tensor) -> Tensor:
    y = x * 2
    y.sub_(1.0)
    return y.square().sum()


def test_writing_to_a_tensor_of_its_own_is_put_out_of_place() -> None:
    x = torch.ones(2, requires_grad=True)

    def objective() -> Objective:
        value = _plain_square(x)
        return Objective(value, value)

    slopes = traced(Slopes(objective, [x], MANY))
    slopes()
    assert slopes.way == "replayed", slopes.refused
    assert slopes().gradients[0].tolist() == [4.0, 4.0]


COUNTED = torch.zeros(())
PLACES = torch.tensor([1, 0, 1])


def test_a_counter_that_nobody_reads_and_a_fixed_index_are_no_obstacle() -> None:
    x = torch.ones(2, requires_grad=True)

    def objective() -> Objective:
        COUNTED.add_(1)
        value = x[PLACES].square().sum()
        return Objective(value, value)

    slopes = traced(Slopes(objective, [x], MANY))
    slopes()
    assert slopes.way == "replayed", slopes.refused
    assert slopes().gradients[0].tolist() == [2.0, 4.0]


def test_a_model_that_changes_unseen_is_found_out_and_its_best_forgotten() -> None:
    x = torch.zeros(1, requires_grad=True)
    calls = 0

    def objective() -> Objective:
        nonlocal calls
        calls += 1
        loss = (x - 3).square().sum() + (1.0 if calls > START + 3 else 0.0)
        return Objective(loss, loss)

    found = minimise(
        objective,
        [Unknown([x], lambda v: v)],
        schedule=Schedule(goal=-1, iterations=MANY, give_up=10**6),
        budget=Budget(),
    )
    assert found.way == "plain"
    assert found.total_best >= 1.0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_kernels_equal_the_reference_to_rounding() -> None:
    scene = Scene(mlp, torch.float32)
    slopes = traced(Slopes(scene.objective, scene.leaves, MANY, compiled=True))
    assert slopes.way == "compiled", slopes.refused
    moved(scene.leaves)
    slopes()
    fast = slopes()
    reference = Slopes(lambda: scene.objective(factor=False), scene.leaves, 1)()
    assert apart((fast.total,), (reference.total,)) < 1e-5
    assert apart(fast.gradients, reference.gradients) < 1e-5
    assert slopes.way == "compiled"


def test_without_a_compiler_iterations_are_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr("torch._inductor.compile", missing)
    x = torch.ones(2, requires_grad=True)
    slopes = traced(Slopes(lambda: _square(x), [x], MANY, compiled=True))
    assert slopes.way == "replayed"
    assert "no C++ compiler" in slopes.refused
    assert slopes().gradients[0].tolist() == [2.0, 2.0]


def test_added_zeros_are_left_out() -> None:
    layer = nn.Linear(4, 4)
    x = torch.ones(1, 4, requires_grad=True)

    def objective() -> Objective:
        out = F.linear(x, layer.weight)
        loss = (out + torch.zeros_like(out)).square().sum()
        return Objective(loss, loss)

    slopes = traced(Slopes(objective, [x], MANY))
    assert slopes.way == "replayed"
    code = str(getattr(slopes._run, "code", ""))
    assert "aten.mm" in code
    assert "zeros_like" not in code
