"""``sparse_factorization``: batches through dropout, and where it must refuse."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor
from privaudit._align import assignment
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit._runner import Client, Clock, run
from privaudit.attacks import SparseFactorization
from privaudit.attacks._row_scale import scale_rows
from privaudit.attacks._sparse import sparse_basis
from privaudit.attacks._unfold import unfold
from privaudit.config import Budget
from privaudit.exposure import ClientStep, GradientExposure
from privaudit.metrics import Ssim
from privaudit.types import AttackerKnowledge, Batch, Reconstruction, Target

SHAPE = (3, 12, 12)
NORMAL = Normalisation((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
Act = Callable[[], nn.Module]


def perceptron(p: float, *, bias: bool = False, act: Act = nn.GELU) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(432, 192, bias=bias), act(), nn.Dropout(p),
            nn.Linear(192, 96, bias=bias), act(), nn.Dropout(p),
            nn.Linear(96, 10, bias=bias),
        )  # fmt: skip


def sample(count: int) -> Batch:
    images = shipped_images(count, SHAPE)
    return Batch(images, torch.arange(count) * 3 % 10)


class Attacked:
    """One client's step and what the attack made of it, labels unknown to it."""

    def __init__(self, model: nn.Module, batch: Batch, seed: int = 0) -> None:
        self.batch, self.model = batch, model
        self.exposure = GradientExposure(NORMAL)
        self.step: ClientStep = self.exposure.observe(model, batch, seed=seed)
        self.target = Target(model, self.exposure, AttackerKnowledge())

    def run(self, **settings: int) -> Reconstruction:
        client = Client(self.batch, self.step, range(len(self.batch)))
        attack = SparseFactorization.model_validate(settings)
        ran = run(
            attack, self.target, [client], labels_known=False,
            clock=Clock(Budget(seconds=60)), seed=0,
        )  # fmt: skip
        return ran.outcomes[0]

    def worst(self, found: Reconstruction) -> float:
        assert found.images is not None
        order = assignment(self.batch.images, found.images)
        scores = Ssim().score(self.batch.images, found.images[order])
        return min(s.value for s in scores if s.value is not None)


CASES = [
    pytest.param(0.0, 1, True, nn.GELU, id="one image, no zeros"),
    pytest.param(0.25, 4, False, nn.GELU, id="p=.25, 4"),
    pytest.param(0.5, 8, False, nn.GELU, id="p=.5, 8"),
    pytest.param(0.75, 4, False, nn.GELU, id="p=.75, 4"),
    pytest.param(0.5, 8, True, nn.GELU, id="with bias"),
    pytest.param(0.5, 4, True, nn.ReLU, id="ReLU and dropout"),
    pytest.param(0.0, 4, True, nn.ReLU, id="ReLU alone"),
    pytest.param(0.0, 4, False, nn.ReLU, id="ReLU alone, no bias"),
]


@pytest.mark.parametrize(("p", "count", "bias", "act"), CASES)
def test_every_sample_of_a_batch_is_exact(
    p: float, count: int, bias: bool, act: Act
) -> None:
    attacked = Attacked(perceptron(p, bias=bias, act=act), sample(count))
    found = attacked.run()
    assert found.state == "exact", found.reason
    assert found.residual is not None
    assert found.residual < 1e-4
    assert attacked.worst(found) > 0.999


def test_without_zeros_and_masks_the_mixing_matrix_is_matched() -> None:
    attacked = Attacked(perceptron(0.0), sample(4))
    known = AttackerKnowledge(attacked.batch.labels)
    attacked.target = Target(attacked.model, attacked.exposure, known)
    found = SparseFactorization().run(
        attacked.target, attacked.step.observation,
        budget=Budget(), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found.state == "exact", found.reason
    assert found.form == "mixture of the row space"
    assert "16 unknowns" in found.reason
    assert attacked.worst(found) > 0.999


def test_labels_and_masks_come_with_the_images() -> None:
    attacked = Attacked(perceptron(0.5), sample(6))
    found = attacked.run()
    labels = attacked.batch.labels
    assert labels is not None
    assert found.labels is not None
    assert found.labels.tolist() == sorted(labels.tolist())
    assert found.masks is not None
    assert found.images is not None
    order = assignment(attacked.batch.images, found.images)
    for truth, guess in zip(attacked.step.tape, found.masks, strict=True):
        assert truth.value is not None
        assert guess.value is not None
        # A unit that is zero of its own accord may pass for dropped.
        agree = (truth.value > 0) == (guess.value[order] > 0)
        assert float(agree.float().mean()) > 0.99


def test_no_argument_could_carry_the_truth() -> None:
    """Scale and sign come from the gradient alone."""
    assert list(inspect.signature(scale_rows).parameters) == [
        "scene", "rows", "hidden", "after",
    ]  # fmt: skip
    assert list(inspect.signature(unfold).parameters) == ["scene", "images"]


def test_a_wrong_gradient_is_never_exact() -> None:
    """The first layer is taken apart, but the rest does not fit to it."""
    attacked = Attacked(perceptron(0.5), sample(4))
    last = dict(attacked.step.observation.gradients)["7.weight"]
    last += 0.1 * last.abs().max() * torch.randn_like(last)
    found = attacked.run()
    assert found.state == "plateau"
    assert attacked.worst(found) > 0.99


def _refused(model: nn.Module, batch: Batch) -> str:
    found = Attacked(model, batch).run()
    assert found.images is None
    assert found.state == "skipped"
    return found.reason


def test_refuses_what_it_does_not_cover() -> None:
    assert "no zeros" in _refused(perceptron(0.0), sample(4))
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(400, 10))
    assert "conv2d, not linear" in _refused(conv, sample(2))
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(432, 3), nn.Linear(3, 10))
    assert "more than 1 has rank for" in _refused(narrow, sample(4))
    early = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), *perceptron(0.5)[1:])
    assert "dropout" in _refused(early, sample(4))


@pytest.mark.parametrize(("size", "state"), [(1e-3, "failed"), (1.0, "skipped")])
def test_noise_is_named(size: float, state: str) -> None:
    """Little of it is this attack's own limit, and no evidence; much is a defense."""
    attacked = Attacked(perceptron(0.5), sample(4))
    first = dict(attacked.step.observation.gradients)["1.weight"]
    first += size * first.abs().max() * torch.randn_like(first)
    found = attacked.run()
    assert found.state == state
    assert "not of rank 4: noise" in found.reason


def test_equal_images_are_said_to_be_equal() -> None:
    batch = sample(4)
    batch.images[3] = batch.images[2]
    attacked = Attacked(perceptron(0.5, bias=True), batch)
    found = attacked.run()
    assert found.images is not None
    assert any("equal images appear once" in n for n in found.notes)
    assert attacked.worst(found) > 0.999


def test_without_a_next_layer_the_scale_is_unknown() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(432, 64, bias=False), nn.ReLU(), nn.Softmax(-1)
    )
    found = Attacked(model, sample(3)).run(restarts=1)
    assert found.state in ("failed", "skipped")
    assert found.images is None


def test_partial_finds_are_counted() -> None:
    found = Attacked(perceptron(0.1), sample(12)).run(starts=1, patience=4, restarts=1)
    assert found.images is None
    assert found.state == "failed", "no evidence of anything"


def test_row_sampling_finds_the_same_directions() -> None:
    """The reference: null vectors of random rows, kept for their many zeros."""
    generator = torch.Generator().manual_seed(0)
    rank, rows = 4, 300
    delta = torch.randn(rows, rank, generator=generator, dtype=torch.double)
    delta *= torch.rand(rows, rank, generator=generator) > 0.5
    mixed = delta @ torch.randn(rank, rank, generator=generator, dtype=torch.double)
    left = torch.linalg.qr(mixed)[0]
    basis = sparse_basis(left, None, generator=generator)
    assert basis.directions.shape == (rank, rank)
    reference = _by_sampling(left, generator)
    assert len(reference) == rank
    for direction in basis.directions:
        assert max(float((direction @ r).abs()) for r in reference) > 1 - 1e-9


def _by_sampling(left: Tensor, generator: torch.Generator) -> list[Tensor]:
    rank, found = left.shape[1], list[Tensor]()
    rows = left[left.norm(dim=1) > 1e-9]
    for _ in range(5000):
        chosen = torch.randperm(len(rows), generator=generator)[: rank - 1]
        _, s, vh = torch.linalg.svd(rows[chosen])
        zeros = int(((rows @ vh[-1]).abs() < 1e-9).sum())
        # Halfway between the shares of one sample and of two at once.
        if s[-1] < 1e-6 or zeros < 0.375 * len(rows):
            continue
        if all(float((vh[-1] @ f).abs()) < 1 - 1e-6 for f in found):
            found.append(vh[-1])
    return found


def test_an_audit_of_a_batch_says_what_dropout_did() -> None:
    batch = sample(4)
    model = perceptron(0.5)
    auditor = Auditor(model, mean=NORMAL.mean, std=NORMAL.std, budget="quick")
    result = auditor.audit((batch.images, batch.labels))
    assert result.verdict.word == "leaks"
    assert result.verdict.worst["ssim"].attack == "sparse_factorization"
    assert result.attacks["sparse_factorization"].state == "exact"
    control = result.record.positive_control
    assert control is not None
    assert control.passed, control.detail
    told = next(
        f for f in result.record.inventory.findings if f.code == "dropout-exact-batch"
    )
    assert told.title == "Dropout made recovery exact: 4 of 4 images"
    assert "More dropout makes this easier" in told.text
