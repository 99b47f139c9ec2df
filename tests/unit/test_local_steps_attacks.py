"""Attacks on a weight difference: simulated steps win; nothing is claimed wrongly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Budget, Client, Knowledge
from privaudit._align import assignment
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks._labels import infer_labels
from privaudit.attacks._minimise import Schedule
from privaudit.attacks._scene import Scene, structure_of
from privaudit.attacks.closed_form import ClosedForm
from privaudit.attacks.inverting_gradients import InvertingGradients
from privaudit.attacks.sparse_factorization import SparseFactorization
from privaudit.attacks.well_informed import WellInformed
from privaudit.exposure import GradientExposure, LocalSteps
from privaudit.metrics import Ssim
from privaudit.result import AuditResult, SampleOutcome
from privaudit.types import AttackerKnowledge, Batch, Reconstruction, Target
from tests.models.dia import lenet

USUAL = Normalisation((0.5,), (0.25,))


def narrow(side: int, p: float = 0.0, width: int = 64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(side * side, width), nn.GELU(), nn.Dropout(p),
        nn.Linear(width, width), nn.GELU(), nn.Dropout(p), nn.Linear(width, 10),
    )  # fmt: skip


def photographs(count: int, side: int) -> Batch:
    return Batch(shipped_images(count, (1, side, side)), torch.arange(count) % 10)


def outcomes_of(result: AuditResult) -> list[SampleOutcome]:
    return next(a for a in result.record.attacks if a.outcomes).outcomes


def ssim(batch: Batch, found: Reconstruction) -> list[float]:
    assert found.images is not None
    images = found.images[assignment(batch.images, found.images)]
    return [s.value or 0.0 for s in Ssim().score(batch.images, images)]


@pytest.mark.parametrize(
    ("name", "lr", "prior"), [("mlp", 0.3, 1e-5), ("lenet", 0.03, 1e-2)]
)
def test_simulating_five_steps_beats_taking_them_for_one(
    name: str, lr: float, prior: float
) -> None:
    side, count = (11, 10) if name == "mlp" else (12, 5)
    torch.manual_seed(0)
    model = narrow(side) if name == "mlp" else lenet(0.0, channels=1, size=side)
    batch = photographs(count, side)
    exposure = GradientExposure(USUAL, local=LocalSteps(5, lr))
    step = exposure.observe(model, batch, seed=0)
    attack = InvertingGradients(schedule=Schedule(iterations=200), prior_weight=prior)
    scores, truths = [], []
    for seen in (exposure, replace(exposure, local=None)):
        target = Target(model, seen, AttackerKnowledge(batch.labels))
        truths.append(attack.loss_at(target, step.observation, batch, step.tape))
        found = attack.run(
            target, step.observation, budget=Budget(),
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        scores.append(sum(ssim(batch, found)) / count)
    assert truths[0] is not None
    assert truths[0] < 1e-5
    assert truths[1] is not None
    assert truths[1] > 1e-3
    assert scores[0] > scores[1] + 0.05, scores


def test_well_informed_matches_the_steps_under_their_masks() -> None:
    batch, model = photographs(2, 11), narrow(11, 0.3)
    exposure = GradientExposure(USUAL, local=LocalSteps(2, 0.3))
    step = exposure.observe(model, batch, seed=0)
    target = Target(model, exposure, AttackerKnowledge(batch.labels, step.tape))
    attack = WellInformed(schedule=Schedule(iterations=300))
    truth = attack.loss_at(target, step.observation, batch, step.tape)
    assert truth is not None
    assert truth < 1e-5
    found = attack.run(
        target, step.observation, budget=Budget(), generator=torch.Generator()
    )
    assert min(ssim(batch, found)) > 0.6


def test_zeros_that_dropout_leaves_tell_apart_the_images_of_all_steps() -> None:
    """Δ of every step is masked: the difference is still Δ Xᵀ, with the bias exact."""
    batch, model = photographs(6, 16), narrow(16, 0.5, 256)
    exposure = GradientExposure(USUAL, local=LocalSteps(3, 0.5, "sgd", 0.9))
    step = exposure.observe(model, batch, seed=0)
    target = Target(model, exposure, AttackerKnowledge(batch.labels))
    found = SparseFactorization().run(
        target, step.observation, budget=Budget(), generator=torch.Generator()
    )
    assert min(ssim(batch, found)) > 0.99
    assert found.state == "plateau"
    assert "3 local steps" in found.reason


def test_one_adamw_step_gives_a_sketch_that_is_called_approximate() -> None:
    batch, model = photographs(1, 11), narrow(11)
    exposure = GradientExposure(USUAL, local=LocalSteps(1, 1.0, "adamw"))
    step = exposure.observe(model, batch, seed=0)
    target = Target(model, exposure, AttackerKnowledge(batch.labels))
    found = ClosedForm().run(
        target, step.observation, budget=Budget(), generator=torch.Generator()
    )
    assert found.state == "plateau"
    assert not found.determined
    assert "approximate: one AdamW step" in found.reason
    plain = replace(exposure, local=None)
    gradient = plain.observe(model, batch, seed=0)
    exact = ClosedForm().run(
        replace(target, exposure=plain, memory={}), gradient.observation,
        budget=Budget(), generator=torch.Generator(),
    )  # fmt: skip
    assert exact.state == "exact"


def guess_labels(local: LocalSteps, labels: Tensor) -> tuple[Tensor | None, str]:
    batch = replace(photographs(len(labels), 11), labels=labels)
    exposure = GradientExposure(USUAL, local=local)
    model = narrow(11)
    step = exposure.observe(model, batch, seed=0)
    target = Target(model, exposure, AttackerKnowledge())
    structure = structure_of(target, step.observation, torch.Generator())
    guess = infer_labels(Scene(target, step.observation, structure, None))
    return guess.labels, guess.reason


def test_labels_of_all_steps_are_counted() -> None:
    labels = torch.tensor([3, 1, 1, 7, 3, 0])
    found, _ = guess_labels(LocalSteps(3, 0.01), labels)
    assert found is not None
    assert found.tolist() == sorted(labels.tolist())
    found, reason = guess_labels(LocalSteps(3, 0.01, "sgd", 0.9), labels)
    assert found is None
    assert "3 local steps" in reason


def test_an_audit_of_several_steps_says_so_everywhere(tmp_path: Path) -> None:
    batch = photographs(4, 12)
    client = Client(local_steps=2, batch_size=2, lr=0.1, momentum=0.5)
    auditor = Auditor(
        narrow(12, 0.5, 128), mean=[0.5], std=[0.25], client=client,
        budget=Budget(seconds=20), attacks=["closed_form", "sparse_factorization"],
    )  # fmt: skip
    result = auditor.audit((batch.images, batch.labels))
    assert result.record.preflight.loss_at_truth is not None
    assert result.record.preflight.loss_at_truth < 1e-5
    threat = result.record.threat_model
    assert threat.exposure == "weight difference after 2 local training steps"
    assert (
        "2 steps of SGD (learning rate 0.1, momentum 0.5) on 2 image(s) each"
        in (threat.sees[0])
    )
    names = [c.path for c in result.record.inventory.stochastic]
    assert len(names) == len(set(names)) == 2, "calls of one step, not of all"
    assert result.verdict.word == "leaks"
    result.save(tmp_path / "report.html")
    page = " ".join((tmp_path / "report.html").read_text().split())
    assert "2 local steps of SGD, 2 images each" in page
    assert "Weight difference after 2 local training steps" in page


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sums_and_smoothed_labels_leak_as_means_do(
    reduction: str, smoothing: float
) -> None:
    def loss(output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(
            output, labels, reduction=reduction, label_smoothing=smoothing
        )

    def without_bias() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(144, 64, bias=False), nn.GELU(), nn.Dropout(0.5),
            nn.Linear(64, 10, bias=False),
        )  # fmt: skip

    batch = photographs(2, 12)
    for model in (narrow(12, 0.5), without_bias()):
        result = Auditor(
            model, mean=[0.5], std=[0.25], loss=loss, client=Client(batch_size=1),
            budget=Budget(seconds=20), attacks=["closed_form"],
        ).audit((batch.images, batch.labels))  # fmt: skip
        outcomes = outcomes_of(result)
        assert [o.state for o in outcomes] == ["exact", "exact"]
        assert all(o.label is None for o in outcomes), "the loss is the user's own"


@pytest.mark.parametrize("kind", ["sum", "smoothed", "soft"])
@pytest.mark.parametrize("bias", [True, False])
def test_batches_come_apart_whatever_the_loss(kind: str, bias: bool) -> None:
    """Counts and argmin rules are for class ids under the default loss only."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 200, bias=bias), nn.GELU(), nn.Dropout(0.5),
        nn.Linear(200, 10),
    )  # fmt: skip
    batch = photographs(4, 16)
    loss = {
        "sum": lambda o, y: F.cross_entropy(o, y, reduction="sum"),
        "smoothed": lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1),
        "soft": None,
    }[kind]
    if kind == "soft":
        generator = torch.Generator().manual_seed(0)
        peaks = 3 * torch.randn(4, 10, generator=generator)
        batch = replace(batch, labels=peaks.softmax(-1))
    exposure = GradientExposure(USUAL, loss)
    step = exposure.observe(model, batch, seed=0)
    target = Target(model, exposure, AttackerKnowledge(batch.labels))
    found = SparseFactorization().run(
        target, step.observation, budget=Budget(), generator=torch.Generator()
    )
    assert min(ssim(batch, found)) > 0.99, found.reason
    assert found.labels is None
    if kind == "soft":
        assert found.state == "exact", found.reason


def test_regression_is_audited_without_class_ids() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.Tanh(), nn.Linear(16, 2))
    batch = photographs(2, 12)
    result = Auditor(
        model, mean=[0.5], std=[0.25], client=Client(batch_size=1),
        loss=lambda output, y: F.mse_loss(output, y), attacks=["closed_form"],
    ).audit((batch.images, torch.tensor([[0.1, 2.0], [3.0, -1.0]])))  # fmt: skip
    outcomes = outcomes_of(result)
    assert [o.state for o in outcomes] == ["exact", "exact"]
    assert all(o.label is None for o in outcomes)


def test_soft_labels_are_never_read_as_class_ids() -> None:
    from privaudit.errors import ConfigError

    soft = torch.full((2, 10), 0.02)
    soft[:, 3] = 0.82
    images = photographs(2, 11).images
    known = Auditor(
        narrow(11), mean=[0.5], std=[0.25], client=Client(batch_size=1),
        attacks=["closed_form"],
    ).audit((images, soft))  # fmt: skip
    assert all(o.label is None for o in outcomes_of(known))
    with pytest.raises(ConfigError, match="the labels are no class ids"):
        Auditor(narrow(11), knowledge=Knowledge(labels="inferred")).audit(
            (images, soft)
        )


def test_matching_uses_the_batch_statistics_of_its_own_guess() -> None:
    """Running statistics are neither used nor moved, and the truth has loss 0."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(),
        nn.Linear(4 * 81, 10),
    )  # fmt: skip
    model[1].running_mean.fill_(5.0)  # type: ignore[operator]
    batch = photographs(4, 11)
    exposure = GradientExposure(USUAL)
    step = exposure.observe(model, batch, seed=0)
    target = Target(model, exposure, AttackerKnowledge(batch.labels))
    attack = InvertingGradients(schedule=Schedule(iterations=20))
    truth = attack.loss_at(target, step.observation, batch, step.tape)
    assert truth is not None
    assert truth < 1e-5
    # The same gradient does not come out of the running statistics.
    model.eval()
    still = GradientExposure(USUAL, mode="as_is")
    other = attack.loss_at(
        replace(target, exposure=still, memory={}), step.observation, batch, step.tape
    )
    assert other is not None
    assert other > 1e-2
    assert float(model[1].running_mean[0]) == 5.0  # type: ignore[index]
