"""Each countermeasure gets back what its defense took from a naive attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from privaudit._align import assignment
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit._runner import Client, Clock, run
from privaudit.attacks import (
    Attack,
    ClosedForm,
    InvertingGradients,
    SparseFactorization,
)
from privaudit.attacks._matching import Matching, Weighted
from privaudit.attacks._minimise import Schedule
from privaudit.config import Budget
from privaudit.countermeasures import (
    Countermeasure,
    GradientCells,
    GradientNoise,
    LowRank,
    ScaleFree,
    SeenGradient,
    SignLoss,
    SurvivingEntries,
)
from privaudit.countermeasures._completion import complete
from privaudit.countermeasures.gradient_cells import step_of
from privaudit.defenses import (
    Defense,
    Detection,
    DpSgd,
    GaussianNoise,
    GradientClipping,
    GradientPruning,
    LaplaceNoise,
    Quantisation,
    SignSgd,
    Soteria,
)
from privaudit.distances import Cosine, SquaredL2
from privaudit.exposure import GradientExposure
from privaudit.exposure.client_step import defended
from privaudit.metrics import Ssim
from privaudit.priors import ImageL2, TotalVariation
from privaudit.types import (
    AttackerKnowledge,
    Batch,
    Observation,
    Reconstruction,
    Target,
)
from tests.models.dia import lenet

SHAPE = (3, 16, 16)
NORMALISATION = Normalisation((0.5,), (0.25,))
SEARCH = InvertingGradients(
    prior_weight=1e-3, schedule=Schedule(patience=40, iterations=400)
)
"""Short steps soon: enough for a picture of 16 by 16."""


def flat(p: float = 0.25, *, bias: bool = True, width: int = 96) -> nn.Module:
    """Two linear layers with dropout between them and the classifier."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(768, width, bias=bias), nn.GELU(), nn.Dropout(p),
        nn.Linear(width, width, bias=bias), nn.GELU(), nn.Dropout(p),
        nn.Linear(width, 10, bias=bias),
    )  # fmt: skip


def convolutional() -> nn.Module:
    torch.manual_seed(1)
    return lenet(0.0, size=16)


class Case:
    """A client that defends itself, and attackers on it."""

    def __init__(self, model: nn.Module, defense: Defense, size: int = 1) -> None:
        exposure = GradientExposure(NORMALISATION)
        self.batch = Batch(shipped_images(size + 1, SHAPE)[1:], torch.arange(size) + 3)
        step = exposure.observe(model, self.batch, seed=0)
        self.step = defended(
            step, [defense], exposure=exposure, model=model, batch=self.batch, seed=0
        )
        known = AttackerKnowledge(self.batch.labels)
        self.target = Target(model, exposure, known)
        self.found = defense.declared()

    def seen(self, answers: Sequence[Countermeasure]) -> SeenGradient:
        target = replace(self.target, memory={})
        seen = SeenGradient(target, self.step.observation)
        for one in sorted(answers, key=lambda a: a.rank):
            seen = one.see_gradient(seen, self.found, torch.Generator().manual_seed(0))
        return seen

    def attack(
        self, attack: Attack, answers: Sequence[Countermeasure] = ()
    ) -> Reconstruction:
        def look(target: Target, client: Client) -> tuple[Target, Client]:
            seen = self.seen(answers)
            step = replace(client.step, observation=seen.observation)
            own = replace(seen.target, knowledge=target.knowledge)
            return own, replace(client, step=step)

        victim = Client(self.batch, self.step, range(len(self.batch)))
        ran = run(
            attack, self.target, [victim], labels_known=True,
            clock=Clock(Budget(seconds=60, restarts=1)), seed=0, look=look,
        )  # fmt: skip
        return ran.outcomes[0]

    def ssim(self, attack: Attack, answers: Sequence[Countermeasure] = ()) -> float:
        """Mean over the batch, in whatever order it came; 0 without an image."""
        images = self.attack(attack, answers).images
        if images is None:
            return 0.0
        truth = self.batch.images
        ordered = images[assignment(truth, images)]
        return float(Ssim().measure(truth, ordered).mean())


def detection(defense: str, **estimate: float) -> Detection:
    return Detection(
        defense=defense, confidence=1.0, evidence="named", estimate=estimate
    )


def gradients_apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    square = sum(float((one[n] - other[n]).square().sum()) for n in other)
    return math.sqrt(square / sum(float(g.square().sum()) for g in other.values()))


def test_surviving_entries_undo_pruning_for_a_search() -> None:
    case = Case(convolutional(), GradientPruning(ratio=0.9))
    naive = case.ssim(SEARCH)
    assert case.ssim(SEARCH, [SurvivingEntries()]) > naive + 0.2


def test_surviving_entries_undo_soteria() -> None:
    case = Case(convolutional(), Soteria())
    naive = case.ssim(SEARCH)
    assert case.ssim(SEARCH, [SurvivingEntries()]) > max(0.8, naive + 0.2)


def test_comparing_signs_gets_further_than_comparing_sizes() -> None:
    case = Case(convolutional(), SignSgd())
    naive = case.ssim(SEARCH)
    assert case.ssim(SEARCH, [SignLoss()]) > naive + 0.15


def test_cells_undo_coarse_rounding_and_leave_fine_rounding_alone() -> None:
    case = Case(convolutional(), Quantisation(bits=2))
    naive = case.ssim(SEARCH)
    assert case.ssim(SEARCH, [GradientCells()]) > naive + 0.05
    fine = Case(convolutional(), Quantisation(bits=8)).seen([GradientCells()])
    assert not fine.target.comparisons
    assert "compared as sent" in fine.notes[0]


def test_inside_its_cells_a_gradient_is_not_at_fault() -> None:
    case = Case(flat(), Quantisation(bits=2))
    (compare,) = case.seen([GradientCells()]).target.comparisons
    clean = case.step.clean.gradients
    mine, theirs = compare(clean, case.step.observation.gradients)
    assert gradients_apart(mine, theirs) < 1e-5
    other = {n: -g for n, g in clean.items()}
    assert gradients_apart(*compare(other, case.step.observation.gradients)) > 0.1


def test_the_step_of_rounding_is_read_off_the_levels() -> None:
    values = torch.tensor([0.0, 0.25, 1.0, 0.25, 0.75])
    assert float(step_of(values)) == pytest.approx(0.25)
    assert float(step_of(torch.ones(3))) == 0


def test_a_fitted_scale_undoes_clipping() -> None:
    case = Case(flat(), GradientClipping(max_norm=1e-3))
    truth = case.step.clean.gradients
    (compare,) = case.seen([ScaleFree()]).target.comparisons
    mine, theirs = compare(truth, case.step.observation.gradients)
    assert gradients_apart(mine, theirs) < 1e-5
    turned = compare({n: -g for n, g in truth.items()}, truth)
    assert not any(bool(g.any()) for g in turned[0].values())


def test_a_fitted_scale_settles_a_brightness_through_clipping() -> None:
    case = Case(flat(bias=False), GradientClipping(max_norm=1e-3))
    naive = case.attack(ClosedForm())
    assert naive.state != "exact"
    adaptive = case.attack(ClosedForm(), [ScaleFree()])
    assert adaptive.state == "exact"
    assert case.ssim(ClosedForm(), [ScaleFree()]) > 0.999


@pytest.mark.parametrize("bias", [True, False])
def test_pruned_linear_layers_are_completed(bias: bool) -> None:
    case = Case(flat(bias=bias), GradientPruning(ratio=0.9))
    answers = [LowRank(), SurvivingEntries()]
    naive = case.ssim(ClosedForm())
    assert case.ssim(ClosedForm(), answers) > max(0.9, naive + 0.01)
    before = gradients_apart(case.step.observation.gradients, case.step.clean.gradients)
    after = case.seen(answers).observation.gradients
    assert gradients_apart(after, case.step.clean.gradients) < 0.6 * before


def test_a_pruned_batch_is_completed_and_taken_apart() -> None:
    case = Case(flat(p=0.4, width=256), GradientPruning(ratio=0.7), size=3)
    attack = SparseFactorization(starts=32)
    assert case.ssim(attack) < 0.3
    assert case.ssim(attack, [LowRank(), SurvivingEntries()]) > 0.9


def test_completion_is_exact_where_enough_survives() -> None:
    generator = torch.Generator().manual_seed(0)
    for rank in (1, 3):
        left = torch.randn(40, rank, generator=generator, dtype=torch.float64)
        right = torch.randn(rank, 50, generator=generator, dtype=torch.float64)
        whole = left @ right
        kept = torch.rand(whole.shape, generator=generator) < 0.3
        found = complete(whole * kept, rank)
        assert found.misfit < 1e-6
        assert found.known == 1
        torch.testing.assert_close(found.values, whole, rtol=1e-4, atol=1e-4)


def test_completion_leaves_what_nothing_determines() -> None:
    matrix = torch.outer(torch.arange(1.0, 5), torch.arange(1.0, 6)).double()
    matrix[:, 2] = 0
    matrix[3] = 0
    matrix[0, 0] = matrix[1, 1] = 0
    found = complete(matrix, 1)
    assert not found.values[:, 2].any()
    assert not found.values[3].any()
    assert found.values[0, 0] == pytest.approx(1)
    assert found.values[1, 1] == pytest.approx(4)
    assert found.known == pytest.approx(12 / 20)
    assert complete(torch.zeros(4, 5).double(), 1).known == 0


def test_a_matrix_of_higher_rank_is_not_completed() -> None:
    case = Case(flat(), GradientPruning(ratio=0.5))
    name = "1.weight"
    noisy = dict(case.step.observation.gradients)
    noisy[name] = noisy[name] * torch.rand_like(noisy[name]).add(0.5)
    observation = replace(case.step.observation, gradients=noisy)
    seen = LowRank().see_gradient(
        SeenGradient(case.target, observation), case.found, torch.Generator()
    )
    assert torch.equal(seen.observation.gradients[name], noisy[name])
    assert f"{name}: not completed" in seen.notes[0]


@pytest.mark.parametrize(
    "defense",
    [GaussianNoise(noise_std=0.5), LaplaceNoise(noise_std=0.5), Quantisation(bits=4)],
    ids=lambda d: d.name,
)
def test_low_rank_sees_through_noise_and_reads_the_masks(defense: Defense) -> None:
    case = Case(flat(bias=False), defense)
    naive = case.ssim(ClosedForm())
    assert case.ssim(ClosedForm(), [LowRank()]) > max(0.85, naive + 0.02)


def test_low_rank_says_where_no_layer_is() -> None:
    case = Case(nn.Sequential(nn.Conv2d(3, 10, 16), nn.Flatten()), GaussianNoise())
    assert "no linear layer" in case.seen([LowRank()]).notes[0]


def test_the_share_of_noise_is_known_or_measured() -> None:
    for defense in (GaussianNoise(noise_std=0.5), LaplaceNoise(noise_std=0.5)):
        case = Case(flat(), defense)
        assert case.seen([GradientNoise()]).target.noise_share == pytest.approx(0.2)
        case.found = detection(defense.name)
        measured = case.seen([GradientNoise()]).target.noise_share
        assert measured == pytest.approx(0.2, rel=0.1)
        left = case.seen([GradientNoise(), LowRank()]).target.noise_share
        assert left < 0.02


def test_the_noise_of_dp_sgd_is_known_from_its_settings() -> None:
    pytest.importorskip("opacus")
    case = Case(flat(), DpSgd(noise_multiplier=1e-3))
    sent, clean = case.step.observation.gradients, case.step.clean.gradients
    norm = sum(float(g.square().sum()) for g in clean.values()) ** 0.5
    noise = {n: sent[n] - clean[n] * min(1.0, 1 / norm) for n in sent}
    square = [sum(float(g.square().sum()) for g in part.values())
              for part in (noise, sent)]  # fmt: skip
    share = case.seen([GradientNoise()]).target.noise_share
    assert share == pytest.approx(square[0] / square[1], rel=0.05)


def test_noise_of_unknown_size_is_said_to_be() -> None:
    case = Case(nn.Sequential(nn.Conv2d(3, 10, 16), nn.Flatten()), GaussianNoise())
    case.found = detection("gaussian_noise")
    seen = case.seen([GradientNoise()])
    assert seen.target.noise_share == 0
    assert "not known" in seen.notes[0]


@pytest.mark.parametrize(
    ("distance", "floor"), [(SquaredL2(), 0.2), (Cosine(), 1 - 0.8**0.5)]
)
def test_a_search_stops_where_noise_begins(
    distance: Cosine | SquaredL2, floor: float
) -> None:
    case = Case(flat(), GaussianNoise(noise_std=0.5))
    seen = case.seen([GradientNoise()])
    matching = Matching(
        seen.target, seen.observation, case.batch.labels, distance,
        [Weighted(1e-5, TotalVariation()), Weighted(1e-5, ImageL2())],
    )  # fmt: skip
    assert matching.noise_floor() == pytest.approx(floor, rel=0.05)
    smooth, size = matching.priors
    assert matching.weight_of(smooth) == pytest.approx(0.02)
    assert matching.weight_of(size) == 1e-5
    calm = replace(matching, target=case.target)
    assert calm.weight_of(smooth) == 1e-5


def test_knowing_of_noise_helps_a_search() -> None:
    case = Case(convolutional(), GaussianNoise(noise_std=0.5))
    naive = case.ssim(SEARCH)
    assert case.ssim(SEARCH, [GradientNoise()]) > naive + 0.1


def test_countermeasures_leave_what_was_sent_as_it_is() -> None:
    case = Case(flat(), GradientPruning(ratio=0.5))
    before = {n: g.clone() for n, g in case.step.observation.gradients.items()}
    every = [
        GradientCells(), GradientNoise(), LowRank(), ScaleFree(), SignLoss(),
        SurvivingEntries(),
    ]  # fmt: skip
    seen = case.seen(every)
    assert len(seen.notes) == len(every)
    for compare in seen.target.comparisons:
        compare(before, case.step.observation.gradients)
    for name, value in case.step.observation.gradients.items():
        assert torch.equal(value, before[name])
    assert isinstance(seen.observation, Observation)
