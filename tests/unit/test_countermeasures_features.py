"""Countermeasures on features give back what the naive attack lost."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.attacks import InverseNetwork, LinearInverse, Rmle
from privaudit.attacks._feature_loss import loss_at
from privaudit.config import Budget
from privaudit.countermeasures import Countermeasure, SeenFeatures
from privaudit.countermeasures._position_classifier import best_places, own_images
from privaudit.countermeasures.filter_channels import FilterChannels
from privaudit.countermeasures.match_tokens import MatchTokens
from privaudit.countermeasures.noise_floor import NoiseFloor
from privaudit.countermeasures.quantisation_cells import QuantisationCells
from privaudit.countermeasures.reorder_tokens import ReorderTokens
from privaudit.countermeasures.rescale_channels import RescaleChannels
from privaudit.countermeasures.surviving_values import SurvivingValues
from privaudit.defenses import (
    Defense,
    Detection,
    GaussianNoise,
    Quantisation,
    RandomZeroing,
    TokenDrop,
    TokenShuffle,
)
from privaudit.defenses.base import FEATURES
from privaudit.distances import FEATURE_DISTANCES
from privaudit.exposure import FeatureExposure
from privaudit.exposure.cut import Cut
from privaudit.types import Batch, FeatureLayout, FeatureTarget, Reconstruction
from tests.contract.feature_cases import SHAPE, feature_case, photographs
from tests.models.vit import small_vit

REORDER = ReorderTokens(steps=150, images=64)
MATCH = MatchTokens(steps=150, images=64)


class Scaled(Defense):
    """Every other channel of an image is made small, by a factor of its own."""

    name: ClassVar[str] = "scaled"
    title: ClassVar[str] = "Scaled"
    source: ClassVar[str] = "this test"
    exposures: ClassVar[frozenset[str]] = frozenset({FEATURES})
    does_not_protect: ClassVar[str] = "Anything."

    factor: float

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        axis = 1 if layout.kind == "nchw" else sent.dim() - 1
        factors = torch.ones(sent.shape[axis])
        factors[::2] = self.factor
        shape = [-1 if d == axis else 1 for d in range(sent.dim())]
        return sent * factors.view(shape)


def embedded() -> FeatureTarget:
    """A linear patch embedding with a position embedding, 4x4 patches of 4x4."""
    exposure = FeatureExposure(
        Normalisation((0.5,), (0.25,)), Cut("drop"), FeatureLayout("tokens", 1, (4, 4))
    )
    return FeatureTarget(small_vit().eval(), exposure)


def seen_through(
    target: FeatureTarget, *defenses: Defense, count: int = 2
) -> SeenFeatures:
    """What arrives of photographs; zeros stand for dropped tokens."""
    sent = target.exposure.observe(
        target.model, Batch(photographs(count), None), defenses=defenses, seed=5
    )
    if target.exposure.layout.kind == "tokens":
        blank = sent.features.new_zeros(count, 17 - sent.features.shape[1], 96)
        sent = replace(sent, features=torch.cat([sent.features, blank], 1))
    return SeenFeatures(target, sent)


def answered(
    one: Countermeasure, seen: SeenFeatures, *told: Defense, **estimate: float
) -> SeenFeatures:
    found = (
        told[0].declared()
        if told
        else Detection(
            defense=min(one.against), confidence=1, evidence="-", estimate=estimate
        )
    )
    return one.see_features(seen, found, torch.Generator().manual_seed(0))


def at_truth(seen: SeenFeatures, distance: str = "mean_squared_error") -> float:
    """Largest loss that the truth has."""
    images = photographs(len(seen.observation))
    return max(loss_at(seen.target, seen.observation, images, distance))


def rmle(seen: SeenFeatures, iterations: int = 120) -> float:
    found = Rmle(iterations=iterations).run(
        seen.target, seen.observation,
        budget=Budget(), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return error(found)


def error(found: list[Reconstruction]) -> float:
    """Mean squared error in pixels."""
    images = torch.cat([r.images for r in found if r.images is not None])
    assert len(images) == len(found)
    return float((images - photographs(len(images))).square().mean())


def test_reordering_finds_the_permutation() -> None:
    target = embedded()
    clean, shuffled = seen_through(target), seen_through(target, TokenShuffle())
    assert not torch.equal(shuffled.observation.features, clean.observation.features)
    back = answered(REORDER, shuffled)
    assert torch.equal(back.observation.features, clean.observation.features)
    assert "of tokens of others it places" in back.notes[0]
    assert at_truth(back) < 1e-8


def test_dropped_tokens_leave_empty_places() -> None:
    target = embedded()
    clean = seen_through(target).observation.features
    seen = seen_through(target, TokenShuffle(), TokenDrop(ratio=0.5))
    back = answered(REORDER, seen)
    features = back.observation.features
    there = features.ne(0).any(-1)
    assert there.sum(1).tolist() == [9, 9]
    assert torch.equal(features[there], clean[there])
    assert "50% of the tokens were not sent" in back.notes[0]
    assert at_truth(back) < 1e-8
    learnt = back.target.corrupted(clean, torch.Generator().manual_seed(0))
    assert 0 < float(learnt.eq(0).all(-1).float().mean()) < 1
    assert bool(learnt[:, 0].ne(0).any(-1).all())


def test_the_classifier_is_trained_once() -> None:
    target = embedded()
    seen = seen_through(target, TokenShuffle())
    answered(REORDER, seen)
    kept = dict(target.memory)
    answered(MATCH, seen)
    assert dict(target.memory) == kept
    assert len(kept) == 1


def test_the_classifier_learns_from_public_images_where_there_are_some() -> None:
    target = embedded()
    draws = torch.Generator().manual_seed(0)
    public = torch.rand(40, *SHAPE, generator=draws)
    learnt, held = own_images(replace(target, public=public), SHAPE, 32, draws)
    assert (len(learnt), len(held)) == (28, 4)
    rows = {tuple(i[0, 0].tolist()) for i in public}
    assert {tuple(i[0, 0].tolist()) for i in torch.cat([learnt, held])} <= rows
    learnt, held = own_images(replace(target, public=public), SHAPE, 80, draws)
    assert (len(learnt), len(held)) == (70, 5)
    assert float(learnt.min()) >= 0
    assert float(learnt.max()) <= 1


def test_places_are_taken_once() -> None:
    cost = -torch.tensor([[0.9, 0.8, 0.0], [0.9, 0.1, 0.2]])
    assert best_places(cost).tolist() == [1, 0]


@pytest.mark.parametrize("one", [MATCH, MatchTokens(position_weight=0)])
def test_matching_undoes_the_permutation_at_the_truth(one: MatchTokens) -> None:
    target = embedded()
    shuffled = seen_through(target, TokenShuffle(), TokenDrop(ratio=0.25))
    assert at_truth(shuffled) > 0.5
    seen = answered(one, shuffled)
    assert at_truth(seen) < 1e-8
    assert torch.equal(seen.observation.features, shuffled.observation.features)
    assert len(target.memory) == bool(one.position_weight)


def test_matching_follows_a_guess_that_is_a_permutation() -> None:
    """Reversed tokens against tokens: the guess comes back in the order sent."""
    target = replace(
        embedded(), model=nn.Identity(),
        exposure=replace(embedded().exposure, layout=FeatureLayout("tokens", 1)),
    )  # fmt: skip
    sent = torch.eye(5)[None]
    seen = SeenFeatures(target, replace(seen_through(embedded()).observation))
    compared = answered(MatchTokens(position_weight=0), seen).target.comparisons[0]
    guess = torch.cat([sent[:, :1], sent[:, 1:].flip(1)], 1)
    ours, theirs = compared(guess, sent)
    assert torch.equal(ours, sent)
    assert torch.equal(theirs, sent)


@pytest.mark.parametrize("kind", ["tokens", "nchw"])
@pytest.mark.parametrize("factor", [0.3, 1e-25])
def test_scaled_channels_show_all_but_their_scale(kind: str, factor: float) -> None:
    target = feature_case(kind).target
    scaled = seen_through(target, Scaled(factor=factor))
    assert at_truth(scaled) > 0.1
    back = answered(RescaleChannels(), scaled)
    assert at_truth(back) < 1e-6
    same = answered(RescaleChannels(), seen_through(target))
    torch.testing.assert_close(
        back.observation.features, same.observation.features, rtol=1e-3, atol=1e-4
    )


def test_a_channel_keeps_nothing_where_it_has_one_value_or_drowned_in_noise() -> None:
    vector = seen_through(feature_case("vector").target)
    left = answered(RescaleChannels(), vector)
    assert left.target is vector.target
    assert "one value only" in left.notes[0]
    tokens = seen_through(feature_case("tokens").target)
    noisy = replace(tokens, target=replace(tokens.target, noise_share=0.1))
    left = answered(RescaleChannels(), noisy)
    assert left.target is noisy.target
    assert "noise by now" in left.notes[0]


@pytest.mark.parametrize("kind", ["tokens", "nchw", "vector"])
def test_pruned_channels_are_left_out(kind: str) -> None:
    target = feature_case(kind).target
    pruned = seen_through(target, Scaled(factor=1e-3), count=8)
    kept = answered(FilterChannels(), pruned)
    axis = 1 if kind == "nchw" else -1
    channels = pruned.observation.features.shape[axis]
    odd = pruned.observation.features.index_select(
        axis, torch.arange(1, channels, 2)
    )  # fmt: skip
    assert torch.equal(kept.observation.features, odd)
    assert "50% of the channels were left out" in kept.notes[0]
    assert at_truth(kept) < 1e-8 < at_truth(pruned)


@pytest.mark.parametrize("kind", ["tokens", "nchw"])
def test_no_gap_leaves_all_channels_in(kind: str) -> None:
    seen = seen_through(feature_case(kind).target, count=8)
    left = answered(FilterChannels(), seen)
    assert left.target is seen.target
    assert "no gap" in left.notes[0]


def test_channels_that_were_scaled_back_stay() -> None:
    seen = seen_through(feature_case("nchw").target, Scaled(factor=1e-3), count=8)
    scaled = answered(RescaleChannels(), seen)
    both = answered(FilterChannels(), scaled)
    assert FilterChannels.rank > RescaleChannels.rank
    assert both.target is scaled.target
    assert "none was left out" in both.notes[1]


def test_never_more_than_nine_tenths_of_the_channels_are_left_out() -> None:
    usual = torch.ones(20)
    sizes = torch.cat([torch.full((19,), 1e-3), torch.ones(1)])
    assert bool(FilterChannels()._kept(sizes, usual).all())
    assert int(FilterChannels(most=0.96)._kept(sizes, usual).sum()) == 1


@pytest.mark.parametrize("kind", ["tokens", "nchw"])
def test_zeroed_values_are_not_compared(kind: str) -> None:
    seen = seen_through(feature_case(kind).target, RandomZeroing(ratio=0.5))
    back = answered(SurvivingValues(), seen)
    assert at_truth(back) < 1e-8 < 0.1 < at_truth(seen)
    zeros = float(seen.observation.features.eq(0).float().mean())
    assert f"{zeros:.1%} of the values were zero" in back.notes[0]
    clean = seen_through(feature_case(kind).target).observation.features
    learnt = back.target.corrupted(clean, torch.Generator().manual_seed(0))
    assert float(learnt.eq(0).float().mean()) == pytest.approx(0.5, abs=0.05)
    assert torch.equal(learnt[learnt != 0], clean[learnt != 0])


@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("told", [True, False])
def test_rounding_is_no_error(bits: int, told: bool) -> None:
    defense = Quantisation(bits=bits)
    seen = seen_through(feature_case("nchw").target, defense)
    told_of = [defense] if told else []
    back = answered(QuantisationCells(inside=1), seen, *told_of)
    assert at_truth(back) < 1e-10 < at_truth(seen)
    assert f"{bits} bits a value" in back.notes[0]
    clean = seen_through(feature_case("nchw").target).observation.features
    learnt = back.target.corrupted(clean, torch.Generator())
    torch.testing.assert_close(learnt, seen.observation.features)


def test_outside_of_its_cell_a_guess_is_as_far_as_the_edge() -> None:
    seen = seen_through(feature_case("nchw").target, Quantisation(bits=2))
    compare = answered(QuantisationCells(inside=1), seen).target.comparisons[0]
    sent = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    guess = torch.tensor([[0.2, 1.75, 1.0, 3.5]])
    ours, theirs = compare(guess, sent)
    assert torch.equal(ours, guess)
    torch.testing.assert_close(theirs, torch.tensor([[0.2, 1.5, 1.5, 3.5]]))
    narrow = answered(QuantisationCells(inside=0.5), seen).target.comparisons[0]
    _, theirs = narrow(guess, sent)
    torch.testing.assert_close(theirs, torch.tensor([[0.2, 1.25, 1.75, 3.25]]))


@pytest.mark.parametrize(("bits", "share"), [(2, "60%"), (5, "30%")])
def test_coarse_cells_are_wider(bits: int, share: str) -> None:
    seen = seen_through(feature_case("nchw").target, Quantisation(bits=bits))
    back = answered(QuantisationCells(), seen)
    assert f"middle {share} of a cell" in back.notes[0]
    assert at_truth(back) < at_truth(seen)


def test_fine_cells_are_left_alone() -> None:
    seen = seen_through(feature_case("nchw").target, Quantisation(bits=8))
    left = answered(QuantisationCells(), seen)
    assert left.target is seen.target
    assert "8 bits a value, too fine" in left.notes[0]


def test_values_on_no_levels_are_compared_as_they_are() -> None:
    seen = seen_through(feature_case("nchw").target)
    left = answered(QuantisationCells(), seen)
    assert left.target is seen.target
    assert "no even levels" in left.notes[0]


@pytest.mark.parametrize("kind", ["tokens", "nchw", "vector"])
@pytest.mark.parametrize("name", sorted(FEATURE_DISTANCES))
@pytest.mark.parametrize("std", [0.1, 0.5])
def test_the_floor_is_the_distance_of_the_truth(
    kind: str, name: str, std: float
) -> None:
    """In the mean over images; a vector of ten values is too short to tell."""
    target = feature_case(kind).target
    if kind == "vector":
        target = replace(target, model=nn.Sequential(nn.Flatten(), nn.Identity()))
        flat = replace(target.exposure, cut=Cut("1"))
        target = replace(target, exposure=flat)
    noise = GaussianNoise(noise_std=std)
    noisy = seen_through(target, noise, count=8)
    back = answered(NoiseFloor(), noisy, noise)
    sent, layout = noisy.observation.features, target.exposure.layout
    clean = seen_through(target, count=8).observation.features
    distance = FEATURE_DISTANCES[name]()
    real = distance.measure(clean, sent, layout).mean()
    floor = distance.floor(sent, back.target.noise_share, layout).mean()
    assert float(floor) == pytest.approx(float(real), rel=0.1)
    assert at_truth(back, name) < 0.1 * float(real) + 0.02


def test_noise_of_unknown_size_is_said_to_be_unknown() -> None:
    seen = seen_through(feature_case("nchw").target, GaussianNoise(noise_std=0.3))
    left = answered(NoiseFloor(), seen)
    assert left.target is seen.target
    assert "not known" in left.notes[0]


@pytest.mark.parametrize(
    ("kind", "defense", "one"),
    [
        ("tokens", TokenShuffle(), REORDER),
        ("tokens", TokenShuffle(), MATCH),
        ("tokens", RandomZeroing(ratio=0.5), SurvivingValues()),
        ("tokens", Scaled(factor=1e-3), RescaleChannels()),
        ("nchw", Scaled(factor=1e-3), RescaleChannels()),
        ("nchw", Scaled(factor=1e-3), FilterChannels()),
        ("nchw", GaussianNoise(noise_std=1.0), NoiseFloor()),
        ("tokens", GaussianNoise(noise_std=1.0), NoiseFloor()),
        ("nchw", Quantisation(bits=2), QuantisationCells()),
    ],
)
def test_a_search_gets_back_what_was_lost(
    kind: str, defense: Defense, one: Countermeasure
) -> None:
    seen = seen_through(feature_case(kind).target, defense)
    assert rmle(answered(one, seen, defense)) < 0.95 * rmle(seen)


def test_an_inverse_network_learns_from_features_as_they_are_sent() -> None:
    defense = RandomZeroing(ratio=0.7)
    seen = seen_through(feature_case("nchw").target, defense)
    network = InverseNetwork(width=32, layers=1, iterations=150, batch_size=16)

    def drawn(view: SeenFeatures) -> float:
        fresh, draws = replace(view.target, memory={}), torch.Generator().manual_seed(0)
        ran = network.run(fresh, view.observation, budget=Budget(), generator=draws)
        return error(ran)

    assert drawn(answered(SurvivingValues(), seen)) < 0.8 * drawn(seen)


class Grey(nn.Module):
    """A network that was handed over."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.full((len(features), *SHAPE), 0.5)


def test_a_handed_network_is_not_given_features_it_does_not_know() -> None:
    seen = seen_through(feature_case("nchw").target, Scaled(factor=1e-3))
    handed = replace(seen.target, public=None, priors={"inverse_network": Grey()})
    back = answered(RescaleChannels(), replace(seen, target=handed))
    ran = InverseNetwork.tiny().run(
        back.target, back.observation, budget=Budget(), generator=torch.Generator()
    )
    assert {r.state for r in ran} == {"skipped"}
    assert "takes features as they are sent" in ran[0].reason


def test_a_handed_network_says_that_it_knows_no_defense() -> None:
    seen = seen_through(feature_case("nchw").target, RandomZeroing(ratio=0.5))
    handed = replace(seen.target, priors={"inverse_network": Grey()})
    back = answered(SurvivingValues(), replace(seen, target=handed))
    ran = InverseNetwork.tiny().run(
        back.target, back.observation, budget=Budget(), generator=torch.Generator()
    )
    assert any("do not reach it" in n for n in ran[0].notes)


def test_the_linear_inverse_says_what_does_not_reach_it() -> None:
    seen = seen_through(embedded(), RandomZeroing(ratio=0.5))
    back = answered(SurvivingValues(), seen)
    for view, expected in ((seen, False), (back, True)):
        ran = LinearInverse.tiny().run(
            view.target, view.observation,
            budget=Budget(), generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        assert any("do not reach" in n for n in ran[0].notes) is expected
