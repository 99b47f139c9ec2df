"""What a model is worth behind a defense: run as a whole, or trained behind it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.defenses import (
    GaussianNoise,
    GradientPruning,
    RandomZeroing,
    SignSgd,
    TokenDrop,
    TokenShuffle,
)
from privaudit.errors import ConfigError, UnsupportedModelError
from privaudit.exposure import GradientExposure
from privaudit.study.defended_model import DefendedModel
from privaudit.study.federated import FederatedTraining, trained
from privaudit.study.utility import accuracy, measured
from tests.contract.feature_cases import feature_case, photographs


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Photographs with a bright patch that tells the class."""
    images = 0.3 * photographs(count)
    labels = torch.arange(count) % 4
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 0.6
    return images, labels


def small() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(768, 16), nn.ReLU(), nn.Linear(16, 4)
        )


def test_without_defenses_it_is_the_model() -> None:
    case = feature_case("tokens")
    inputs = case.target.exposure.normalisation.apply(case.images)
    whole = DefendedModel(case.target.model, case.target.exposure, [], seed=0)
    assert torch.equal(whole(inputs), case.target.model(inputs))


def test_a_server_does_not_mind_the_order_of_tokens() -> None:
    case = feature_case("tokens")
    inputs = case.target.exposure.normalisation.apply(case.images)
    plain = case.target.model(inputs)
    shuffled = DefendedModel(
        case.target.model, case.target.exposure, [TokenShuffle()], seed=0
    )
    torch.testing.assert_close(shuffled(inputs), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "defense",
    [
        TokenDrop(ratio=0.5),
        TokenDrop(ratio=0.5, where="input"),
        RandomZeroing(ratio=0.5),
        GaussianNoise(noise_std=1.0),
    ],
)
def test_others_cost_something_and_draw_anew(defense: TokenDrop) -> None:
    case = feature_case("tokens")
    inputs = case.target.exposure.normalisation.apply(case.images)
    whole = DefendedModel(case.target.model, case.target.exposure, [defense], seed=0)
    plain, first, second = case.target.model(inputs), whole(inputs), whole(inputs)
    assert first.shape == plain.shape
    assert not torch.allclose(first, plain, rtol=1e-3)
    assert not torch.equal(first, second)


def run(defenses: list[GradientPruning | SignSgd | GaussianNoise]) -> float:
    images, labels = digits(64)
    exposure = GradientExposure(Normalisation((0.5,), (0.25,)))
    parts = list(zip(torch.split(images, 8), torch.split(labels, 8), strict=True))
    moved = trained(
        small(), lambda: parts, defenses, exposure=exposure,
        settings=FederatedTraining(rounds=25, lr=3e-3),
        seed=0,
    )  # fmt: skip
    assert not moved.training
    score = accuracy([(images, labels)], mean=0.5, std=0.25)
    return measured(score, moved)


def test_training_behind_defenses_learns_and_noise_costs_most() -> None:
    images, labels = digits(64)
    before = measured(accuracy([(images, labels)], mean=0.5, std=0.25), small())
    bare, pruned, signs = run([]), run([GradientPruning(ratio=0.9)]), run([SignSgd()])
    drowned = run([GaussianNoise(noise_std=1e5)])
    assert bare > max(0.9, before)
    assert pruned > 0.6
    assert signs > 0.6
    assert drowned < bare


def test_the_same_seed_trains_the_same_model() -> None:
    assert run([GaussianNoise(noise_std=1.0)]) == run([GaussianNoise(noise_std=1.0)])


def test_training_without_batches_is_refused() -> None:
    exposure = GradientExposure(Normalisation(None, None))
    with pytest.raises(ConfigError, match="batches of"):
        trained(
            small(), list, [], exposure=exposure, settings=FederatedTraining(),
            seed=0,
        )  # fmt: skip


def test_batch_norms_get_statistics_of_the_new_weights() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(784, 4)
        )
    images, labels = digits(16)
    exposure = GradientExposure(Normalisation((0.5,), (0.25,)))
    moved = trained(
        model, lambda: [(images, labels)], [], exposure=exposure,
        settings=FederatedTraining(clients=1, rounds=2), seed=0,
    )  # fmt: skip
    norm, first = moved[1], moved[0]  # type: ignore[index]
    seen = first((images - 0.5) / 0.25)
    torch.testing.assert_close(
        norm.running_mean, seen.mean((0, 2, 3)), rtol=1e-3, atol=1e-4
    )
    assert model[1].num_batches_tracked == 0


def test_utilities_give_modes_back_and_refuse_what_is_no_number() -> None:
    model = small().train()

    def worth(given: nn.Module) -> float:
        assert not given.training
        return 0.25

    assert measured(worth, model) == 0.25
    assert model.training
    with pytest.raises(UnsupportedModelError, match="a finite number"):
        measured(lambda _: math.inf, model)
    with pytest.raises(ConfigError, match="some images"):
        measured(accuracy([]), model)
    images, labels = digits(8)
    wrong = measured(accuracy([(images, labels + 10)]), model)
    assert wrong == 0
    assert F.cross_entropy(model(images), labels).isfinite()
