"""DLG, iDLG, APRIL and GradInversion on victims small enough for seconds."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, Client, Knowledge
from privaudit._controls import shipped_images
from privaudit._ladder import GRADIENT_LADDER, choose
from privaudit._pixels import Normalisation
from privaudit.attacks import (
    April,
    Attack,
    Dlg,
    DropoutInversion,
    GradInversion,
    Idlg,
    InvertingGradients,
)
from privaudit.attacks._minimise import Schedule
from privaudit.attacks._norms import NormWatch
from privaudit.config import Budget
from privaudit.distances import LayerwiseL2, SquaredL2, SquaredL2WithPosition
from privaudit.errors import AttackError
from privaudit.exposure import GradientExposure
from privaudit.exposure.predict import observed_as, predict
from privaudit.metrics import Ssim
from privaudit.priors import (
    BatchNormStatistics,
    GroupConsistency,
    ImageL2,
    NormInput,
)
from privaudit.types import (
    AttackerKnowledge,
    Batch,
    Observation,
    Reconstruction,
    Target,
)
from tests.models.dia import ViT, mlp
from tests.models.vit import small_vit

EXPOSURE = GradientExposure(Normalisation((0.5,), (0.25,)))
NEW = [April, Dlg, GradInversion, Idlg]


def dense_net(size: int = 8) -> nn.Module:
    """Two layers; the closed form solves it too."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * size**2, 32), nn.Sigmoid(), nn.Linear(32, 10)
    )


def convolutional() -> nn.Module:
    """The kind of Zhu 2019, for 8 pixels; no closed form."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(6, 6, 5, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(96, 10),
    )
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def normed(size: int = 8) -> nn.Module:
    """With batch norms that remember photographs."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Sigmoid(),
        nn.Conv2d(8, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(2 * size**2, 10),
    )
    images = EXPOSURE.normalisation.apply(shipped_images(32, (3, size, size)))
    with torch.no_grad():
        for _ in range(40):
            model(images)
    return model


def victim(
    build: Callable[[], nn.Module],
    labels: list[int],
    size: int = 8,
    *,
    exposure: GradientExposure = EXPOSURE,
    known: bool = False,
) -> tuple[Target, Observation, Batch]:
    torch.manual_seed(0)
    model = build()
    batch = Batch(shipped_images(len(labels), (3, size, size)), torch.tensor(labels))
    step = exposure.observe(model, batch, seed=0)
    told = AttackerKnowledge(batch.labels if known else None)
    return Target(model, exposure, told), step.observation, batch


def attack(plugin: Attack, target: Target, observation: Observation) -> Reconstruction:
    generator = torch.Generator().manual_seed(0)
    return plugin.run(target, observation, budget=Budget(), generator=generator)


def error(found: Reconstruction, batch: Batch) -> float:
    assert found.images is not None
    return float((found.images - batch.images).square().mean())


def ssim(found: Reconstruction, batch: Batch) -> float:
    assert found.images is not None
    return Ssim().score(batch.images, found.images)[0].value or 0.0


@pytest.mark.parametrize("build", [dense_net, convolutional])
def test_dlg_finds_the_image_and_its_label(build: Callable[[], nn.Module]) -> None:
    target, observation, batch = victim(build, [3])
    found = attack(Dlg(), target, observation)
    assert found.state == "exact"
    assert error(found, batch) < 1e-6
    assert found.labels is not None
    assert found.labels.tolist() == [3]
    assert found.search is not None
    assert found.search.unknowns == 192 + 10


def test_what_dlg_was_told_is_no_part_of_it() -> None:
    target, observation, _ = victim(dense_net, [3])
    told = Target(target.model, EXPOSURE, AttackerKnowledge(torch.tensor([7])))
    first, second = (attack(Dlg.tiny(), t, observation) for t in (target, told))
    assert first.images is not None
    assert second.images is not None
    assert torch.equal(first.images, second.images)


@pytest.mark.parametrize("build", [dense_net, convolutional])
def test_idlg_reads_the_label_and_finds_the_image(
    build: Callable[[], nn.Module],
) -> None:
    target, observation, batch = victim(build, [3])
    found = attack(Idlg(), target, observation)
    assert found.state == "exact"
    assert error(found, batch) < 1e-6
    assert found.labels is not None
    assert found.labels.tolist() == [3]
    assert found.search is not None
    assert found.search.unknowns == 192


def headless() -> nn.Module:
    """No classifier from which labels can be read."""
    return nn.Sequential(
        nn.Conv2d(3, 10, 3), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def test_idlg_uses_given_labels_only_where_none_can_be_read() -> None:
    target, observation, _ = victim(headless, [3], known=True)
    found = attack(Idlg.tiny(), target, observation)
    assert found.labels is None
    assert "those that were given are used" in found.notes[-1]
    blind, *_ = victim(headless, [3])
    with pytest.raises(AttackError, match="labels that can be read off"):
        attack(Idlg.tiny(), blind, observation)


def test_dlg_is_skipped_where_there_are_no_probabilities() -> None:
    own = GradientExposure(EXPOSURE.normalisation, loss=nn.functional.cross_entropy)
    target, observation, _ = victim(dense_net, [3], exposure=own)
    found = attack(Dlg(), target, observation)
    assert found.state == "skipped"
    assert "no class probabilities" in found.reason


def test_one_start_of_lbfgs_may_be_stuck_and_restarts_are_counted() -> None:
    target, observation, _ = victim(dense_net, [3])
    found = attack(Dlg(restarts=2, schedule=Schedule(
        optimiser="lbfgs", learning_rate=1e-9, iterations=3
    )), target, observation)  # fmt: skip
    assert found.state == "plateau"
    assert found.search is not None
    assert found.search.restarts == 2
    assert found.search.iterations == 6


def tiny_vit(p: float) -> Callable[[], nn.Module]:
    return lambda: ViT(p, size=16)


@pytest.mark.slow
def test_april_beats_inverting_gradients_in_equal_iterations() -> None:
    """Not at first: where total variation holds the other back."""
    few = {"iterations": 600, "patience": 40}
    errors = []
    for plugin in (InvertingGradients(), April()):
        target, observation, batch = victim(
            lambda: small_vit(p=0.0, p_embed=0.0), [3], 16, known=True
        )
        schedule = plugin.schedule.model_copy(update=few)
        found = attack(
            plugin.model_copy(update={"schedule": schedule}), target, observation
        )
        assert found.search is not None
        assert found.search.iterations <= 600
        errors.append(error(found, batch))
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 2e-4


@pytest.mark.slow
def test_dropout_stops_the_base_attacks_and_not_their_inversion() -> None:
    target, observation, batch = victim(tiny_vit(0.25), [3], 16, known=True)
    cap = {"iterations": 300}
    for base in (InvertingGradients(), April()):
        schedule = base.schedule.model_copy(update=cap)
        blind = attack(base.model_copy(update={"schedule": schedule}), target,
                       observation)  # fmt: skip
        assert ssim(blind, batch) <= 0.1
        masks = DropoutInversion(base=base.name, schedule=schedule)
        assert ssim(attack(masks, target, observation), batch) > 0.7


def test_without_dropout_the_inversion_of_april_is_april() -> None:
    few = Schedule(iterations=5)
    first, second = (
        attack(plugin, *victim(tiny_vit(0.0), [3], 16, known=True)[:2])
        for plugin in (
            April(schedule=few),
            DropoutInversion(base="april", schedule=few),
        )
    )
    assert first.images is not None
    assert second.images is not None
    assert torch.equal(first.images, second.images)


MODELS_WITHOUT_POSITION: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp(0.25, size=16),
    "frozen": lambda: small_vit(position="frozen"),
    "sincos": lambda: small_vit(position="sincos"),
}


@pytest.mark.parametrize("build", MODELS_WITHOUT_POSITION.values(),
                         ids=MODELS_WITHOUT_POSITION)  # fmt: skip
def test_april_is_skipped_without_a_learned_position(
    build: Callable[[], nn.Module],
) -> None:
    target, observation, batch = victim(build, [3], 16, known=True)
    for plugin in (April(), DropoutInversion(base="april")):
        found = attack(plugin, target, observation)
        assert found.state == "skipped"
        assert "position embedding" in found.reason
        step = EXPOSURE.observe(target.model, batch, seed=0)
        assert plugin.loss_at(target, observation, batch, step.tape) is None


def test_april_finds_the_position_embedding_of_a_batch() -> None:
    target, observation, batch = victim(small_vit, [3, 1], 16, known=True)
    found = attack(April(schedule=Schedule(iterations=3)), target, observation)
    assert found.images is not None
    assert found.images.shape == batch.images.shape


def hooked(model: nn.Module, inputs: Tensor) -> list[NormInput]:
    """Inputs of the batch norms, by plain hooks on a copy: the reference."""
    model = copy.deepcopy(model)
    seen: list[NormInput] = []

    def look(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, var = norm.running_mean.clone(), norm.running_var.clone()
        seen.append(NormInput(given[0].detach(), mean, var))

    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    handles = [m.register_forward_pre_hook(look) for m in norms]
    with torch.no_grad():
        model(inputs)
    for handle in handles:
        handle.remove()
    return seen


def test_batch_norms_are_watched_as_they_are_before_the_pass() -> None:
    target, _, batch = victim(normed, [3, 1])
    watch = NormWatch(target.model)
    predict(EXPOSURE, target.model, batch, None, observer=watch)
    wanted = hooked(target.model, EXPOSURE.normalisation.apply(batch.images))
    assert len(watch.seen) == len(wanted) == 2
    for ours, theirs in zip(watch.seen, wanted, strict=True):
        assert torch.allclose(ours.values, theirs.values, atol=1e-6)
        assert torch.equal(ours.mean, theirs.mean)
        assert torch.equal(ours.var, theirs.var)


def test_batch_norm_statistics_are_zero_where_they_are_the_models() -> None:
    prior, images = BatchNormStatistics(), torch.rand(2, 3, 4, 4)
    values = torch.randn(4, 5, 3, 3) * 2 + 1
    across = (0, 2, 3)
    own = NormInput(values, values.mean(across), values.var(across, correction=0))
    assert float(prior.penalty(images, [own])) == pytest.approx(0, abs=1e-5)
    brighter = NormInput(values + 1, own.mean, own.var)
    wider = NormInput((values - 1) * 2 + 1, own.mean, own.var)
    assert float(prior.penalty(images, [brighter])) > 0.1
    assert float(prior.penalty(images, [wider])) > 0.1
    assert float(prior.penalty(images)) == 0


def test_batch_norm_statistics_know_a_photograph_from_noise() -> None:
    target, _, batch = victim(normed, [3, 1, 5, 7])
    noise = Batch(torch.rand(batch.images.shape), batch.labels)
    penalties = []
    for seen in (batch, noise):
        watch = NormWatch(target.model)
        predict(EXPOSURE, target.model, seen, None, observer=watch)
        penalty = BatchNormStatistics().penalty(seen.images, watch.seen)
        penalties.append(float(penalty.detach()))
    assert penalties[0] < 0.8 * penalties[1]


def statistics_of(found: Reconstruction, target: Target, batch: Batch) -> float:
    assert found.images is not None
    watch = NormWatch(target.model)
    predict(
        EXPOSURE, target.model, Batch(found.images, batch.labels), None, observer=watch
    )
    return float(BatchNormStatistics().penalty(found.images, watch.seen).detach())


def test_the_batch_norm_term_is_lowered_by_the_search() -> None:
    target, observation, batch = victim(normed, [3, 1], known=True)
    few = Schedule(iterations=40)
    led, free = (
        attack(GradInversion(batch_norm_weight=w, schedule=few), target, observation)
        for w in (1.0, 0.0)
    )
    lowered = statistics_of(led, target, batch)
    assert lowered < 0.8 * statistics_of(free, target, batch)


def test_gradinversion_finds_a_batch_through_batch_norm() -> None:
    target, observation, batch = victim(normed, [3, 1], known=True)
    found = attack(
        GradInversion(schedule=Schedule(iterations=250)), target, observation
    )
    assert error(found, batch) < 2e-3
    assert not any("batch norm" in n for n in found.notes)
    assert found.search is not None
    assert found.search.unknowns == 2 * 2 * 192


def test_gradinversion_says_what_it_had_to_do_without() -> None:
    target, observation, _ = victim(dense_net, [3, 3], known=True)
    found = attack(GradInversion.tiny(), target, observation)
    assert any("no batch norm" in n for n in found.notes)
    assert any("share a class" in n for n in found.notes)


def few_classes() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 64), nn.Sigmoid(), nn.Linear(64, 2)
    )


@pytest.mark.parametrize("cls", NEW, ids=lambda c: c.name)
def test_more_images_than_classes_are_searched_all_the_same(cls: type[Attack]) -> None:
    target, observation, batch = victim(few_classes, [0, 1, 1], known=True)
    found = attack(cls.tiny(), target, observation)
    assert found.images is not None
    assert found.images.shape == batch.images.shape
    assert found.search is not None
    assert found.search.loss_final < found.search.loss_start


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("cls", [*NEW, DropoutInversion], ids=lambda c: c.name)
def test_a_gradient_that_is_not_finite_is_refused(
    cls: type[Attack], value: float
) -> None:
    target, observation, _ = victim(dense_net, [3], known=True)
    spoilt = {n: g.clone() for n, g in observation.gradients.items()}
    spoilt["1.weight"][0, 0] = value
    broken = Observation(spoilt, 1, observation.image_shape)
    with pytest.raises(AttackError, match=r"'1.weight'.*1 of 6144 values NaN"):
        attack(cls.tiny(), target, broken)


@pytest.mark.parametrize("cls", NEW, ids=lambda c: c.name)
def test_a_zero_gradient_is_refused(cls: type[Attack]) -> None:
    target, observation, _ = victim(dense_net, [3], known=True)
    zero = {n: torch.zeros_like(g) for n, g in observation.gradients.items()}
    with pytest.raises(AttackError, match="zero everywhere"):
        attack(cls.tiny(), target, Observation(zero, 1, observation.image_shape))


def test_seeds_are_pulled_together_and_the_best_is_returned() -> None:
    target, observation, batch = victim(dense_net, [3], known=True)
    found = attack(
        GradInversion(seeds=3, schedule=Schedule(iterations=60)), target, observation
    )
    assert found.images is not None
    assert found.images.shape == batch.images.shape
    prior = GroupConsistency(seeds=3)
    alike = batch.images.repeat(3, 1, 1, 1)
    assert float(prior.penalty(alike)) < 1e-5
    assert float(prior.penalty(alike + torch.randn(3, 1, 1, 1))) > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("model", ["mlp", "vit"])
def test_distances_equal_the_plain_ones_near_and_far(
    model: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    built = (mlp(0.0, size=16) if model == "mlp" else ViT(0.0, size=16)).to(dtype)
    images = shipped_images(2, (3, 16, 16)).to(dtype)
    batch = Batch(images, torch.tensor([1, 2]))
    wanted = EXPOSURE.gradient(built, batch)
    for step in (0.3, 1e-3):
        moved = Batch(images + step * torch.randn_like(images), batch.labels)
        plain = EXPOSURE.gradient(built, moved)
        guess = predict(EXPOSURE, built, moved, None)
        observed = observed_as(guess, wanted)
        apart = {n: (plain[n] - wanted[n]).double() for n in wanted}
        squared = sum(float(d.square().sum()) for d in apart.values())
        norms = sum(float(d.norm()) for d in apart.values())
        of_all = sum(float(g.double().square().sum()) for g in wanted.values())
        of_each = sum(float(g.double().norm()) for g in wanted.values())
        near = 1e-2 if dtype == torch.float32 else 1e-6
        joint = float(SquaredL2().measure(guess, observed).detach())
        assert joint == pytest.approx(squared / of_all, rel=near)
        layers = float(LayerwiseL2().measure(guess, observed).detach())
        assert layers == pytest.approx(norms / of_each, rel=near)


def test_the_position_counts_by_its_direction() -> None:
    target, observation, batch = victim(tiny_vit(0.0), [3], 16)
    guess = predict(EXPOSURE, target.model, batch, None)
    turned = dict(observation.gradients)
    turned["position"] = -turned["position"]
    distance = SquaredL2WithPosition(position="position", weight=10.0)
    at_truth = distance.measure(guess, observed_as(guess, observation.gradients))
    away = distance.measure(guess, observed_as(guess, turned))
    only = SquaredL2().measure(guess, observed_as(guess, turned))
    assert float(at_truth.detach()) == pytest.approx(0, abs=1e-5)
    assert float((away - only).detach()) == pytest.approx(20, rel=1e-4)


def test_pixels_near_the_mean_of_all_images_are_likelier() -> None:
    prior = ImageL2()
    assert float(prior.penalty(torch.zeros(2, 3, 4, 4))) < 1e-5
    assert float(prior.penalty(torch.full((2, 3, 4, 4), 3.0))) == pytest.approx(3)


@pytest.mark.parametrize("cls", NEW, ids=lambda c: c.name)
def test_none_of_them_decides_or_is_a_rung(cls: type[Attack]) -> None:
    assert not cls.required
    assert not cls.diagnostic
    assert cls.name not in GRADIENT_LADDER
    assert cls.name not in {a.name for a in choose("auto")}
    assert cls.name in {a.name for a in choose("all")}


def test_an_audit_runs_them_by_name() -> None:
    torch.manual_seed(0)
    auditor = Auditor(
        dense_net(),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        attacks=["dlg", "idlg", "april"],
        client=Client(batch_size=1),
        knowledge=Knowledge(labels="inferred"),
    )
    result = auditor.audit((shipped_images(1, (3, 8, 8)), torch.tensor([3])))
    assert result.attacks["dlg"].state == "exact"
    assert result.attacks["idlg"].record.label_accuracy == 1.0
    assert result.attacks["april"].state == "skipped"
    assert result.verdict.word != "no leak found"
