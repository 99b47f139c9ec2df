"""Labels read off the gradient: counts with duplicates, or a refusal (hard case 30)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from privaudit import Auditor, Client, Knowledge
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks._labels import LabelGuess, infer_labels
from privaudit.attacks._scene import Scene, structure_of
from privaudit.exposure import GradientExposure
from privaudit.result import AuditResult
from privaudit.types import AttackerKnowledge, Batch, Target

SHAPE = (3, 12, 12)


def model(*, bias: bool = True, classes: int = 10, gain: float = 0.1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = nn.Sequential(
            nn.Flatten(), nn.Linear(432, 32), nn.GELU(), nn.Dropout(0.3),
            nn.Linear(32, classes, bias=bias),
        )  # fmt: skip
    with torch.no_grad():
        built[4].weight.mul_(gain)  # type: ignore[operator]
    return built


def guess(net: nn.Module, labels: list[int]) -> LabelGuess:
    images = shipped_images(len(labels) + 1, SHAPE)[1:]
    exposure = GradientExposure(Normalisation((0.5,), (0.25,)))
    step = exposure.observe(net, Batch(images, torch.tensor(labels)), seed=0)
    target = Target(net, exposure, AttackerKnowledge())
    generator = torch.Generator().manual_seed(0)
    structure = structure_of(target, step.observation, generator)
    return infer_labels(Scene(target, step.observation, structure, None))


@pytest.mark.parametrize(
    "labels",
    [[1, 1, 3], [1, 1, 1], [0, 9], [2, 2, 2, 2, 7, 7, 0, 9], [4] * 6, [5]],
    ids=str,
)
def test_counts_and_not_only_a_set(labels: list[int]) -> None:
    found = guess(model(), labels)
    assert found.labels is not None, found.reason
    assert found.labels.tolist() == sorted(labels)
    assert 0 < found.confidence <= 1


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=16),
    gain=st.sampled_from([0.05, 0.3, 1.0, 3.0, 40.0]),
)
def test_right_or_refused_but_never_wrong(labels: list[int], gain: float) -> None:
    found = guess(model(gain=gain), labels)
    assert found.labels is None or found.labels.tolist() == sorted(labels)


@pytest.mark.parametrize("label", range(10))
@pytest.mark.parametrize("bias", [True, False])
def test_one_label(label: int, bias: bool) -> None:
    found = guess(model(bias=bias, gain=1.0), [label])
    assert found.labels is not None
    assert found.labels.tolist() == [label]
    assert ("weight" in found.reason) == (not bias)


def test_a_confident_model_is_refused() -> None:
    """A batch on which the model is sure tells counts apart no more."""
    found = guess(model(gain=40.0), [1, 1, 3])
    assert found.labels is None
    assert "labels not recovered" in found.reason


def test_counts_far_from_whole_numbers_are_refused() -> None:
    """They add up here and would be wrong: only the rounding gives them away."""
    for labels in ([9, 1, 9, 8, 0, 5, 7, 8], [6, 6, 1, 1, 5, 7, 5, 0]):
        found = guess(model(gain=3.0), labels)
        assert found.labels is None
        assert "furthest from whole" in found.reason


def test_a_certain_model_is_refused() -> None:
    net = model()
    with torch.no_grad():
        net[4].bias[3] = 200.0  # type: ignore[index]
    for labels in ([3], [3, 3]):
        found = guess(net, labels)
        assert found.labels is None
        assert "max |g| = 0.0" in found.reason


def test_two_classes_without_bias_are_refused() -> None:
    found = guess(model(bias=False, classes=2), [1])
    assert found.labels is None
    assert "both signs are possible" in found.reason
    assert guess(model(classes=2), [1]).labels is not None


def test_a_batch_without_bias_is_refused() -> None:
    found = guess(model(bias=False), [1, 1, 3])
    assert found.labels is None
    assert "without a bias gradient" in found.reason


def audit(net: nn.Module, labels: Tensor, size: int | None = 1) -> AuditResult:
    auditor = Auditor(
        net, mean=0.5, std=0.25, client=Client(batch_size=size),
        knowledge=Knowledge(labels="inferred"), attacks=["closed_form"],
    )  # fmt: skip
    return auditor.audit((shipped_images(len(labels) + 1, SHAPE)[1:], labels))


def test_the_record_shows_the_label_read_off() -> None:
    result = audit(model(), torch.tensor([4, 7]))
    assert result.verdict.word == "leaks"
    assert [o.label for o in result.attacks["closed_form"].record.outcomes] == [4, 7]
    assert "the labels" in result.record.threat_model.does_not_know


def test_a_refusal_is_in_the_record_with_its_reason() -> None:
    result = audit(model(bias=False, classes=2), torch.tensor([1]))
    (outcome,) = result.attacks["closed_form"].record.outcomes
    assert outcome.label is None
    assert "both signs are possible" in outcome.note


def test_labels_of_a_batch_belong_to_no_single_image() -> None:
    result = audit(model(), torch.tensor([1, 1, 3]), size=None)
    assert [o.label for o in result.attacks["closed_form"].record.outcomes] == [
        None
    ] * 3
