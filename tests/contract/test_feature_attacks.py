"""What every attack on features must do. Not edited for a new attack."""

from __future__ import annotations

import dataclasses
import inspect
import json
import random

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from privaudit.attacks import FEATURE_ATTACKS, FeatureAttack
from privaudit.types import FeatureObservation, FeatureTarget
from tests.contract.cases import shows, tensors
from tests.contract.feature_cases import SHAPE, FeatureCase, feature_case, photographs

KINDS = ("tokens", "nchw", "vector")


@pytest.fixture(params=sorted(FEATURE_ATTACKS))
def attack(request: pytest.FixtureRequest) -> FeatureAttack:
    """The tiny instance of every attack in turn."""
    return FEATURE_ATTACKS[str(request.param)].tiny()


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest) -> FeatureCase:
    return feature_case(str(request.param))


def test_states_its_facts(attack: FeatureAttack) -> None:
    assert attack.name == attack.name.strip().lower() != ""
    assert attack.title
    assert attack.source
    assert (type(attack).__doc__ or "").strip()
    assert not (attack.diagnostic and attack.required)


def test_answers_each_image_in_pixels(attack: FeatureAttack, case: FeatureCase) -> None:
    found = case.attack(attack)
    assert len(found) == len(case.images)
    for one in found:
        if one.state in ("failed", "skipped", "stopped"):
            assert one.reason
        if one.images is None:
            assert one.state in ("failed", "skipped", "stopped")
            continue
        assert one.images.shape == (1, *SHAPE)
        assert one.images.dtype == torch.float32
        assert bool(one.images.isfinite().all())
        assert float(one.images.min()) >= 0
        assert float(one.images.max()) <= 1
        assert not one.images.requires_grad


def test_a_search_gets_somewhere(attack: FeatureAttack, case: FeatureCase) -> None:
    for one in case.attack(attack):
        if one.search is not None:
            assert one.search.loss_final < one.search.loss_start


def test_its_loss_at_an_image_is_that_of_the_search(
    attack: FeatureAttack, case: FeatureCase
) -> None:
    truth = attack.loss_at(case.target, case.observation, case.images)
    if truth is None:
        return
    assert len(truth) == len(case.images)
    assert max(truth) < 1e-5
    for index, one in enumerate(case.attack(attack)):
        if one.search is None or one.images is None:
            continue
        part = FeatureObservation(case.observation.features[index : index + 1], SHAPE)
        there = attack.loss_at(case.target, part, one.images)
        assert there is not None
        assert one.search.loss_final == pytest.approx(there[0], rel=1e-3, abs=1e-6)


def test_leaves_the_model_and_the_world_bit_for_bit(
    attack: FeatureAttack, case: FeatureCase
) -> None:
    model = case.target.model
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    wants = [p.requires_grad for p in model.parameters()]
    hooks = [len(m._forward_hooks) for m in model.modules()]
    world = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    case.attack(attack)
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wants
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), world[0])
    assert random.getstate() == world[1]
    assert np.random.get_state()[1].tolist() == world[2]  # type: ignore[index]


def test_is_deterministic_for_one_seed(
    attack: FeatureAttack, case: FeatureCase
) -> None:
    first, again = (case.attack(attack, seed=7) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.state == other.state
        assert (one.images is None) == (other.images is None)
        if one.images is not None and other.images is not None:
            assert torch.equal(one.images, other.images)


def test_takes_no_truth(attack: FeatureAttack) -> None:
    names = list(inspect.signature(attack.run).parameters)
    assert names == ["target", "observation", "budget", "generator"]
    fields = {f.name for f in dataclasses.fields(FeatureObservation)}
    assert fields == {"features", "image_shape"}
    fields = {f.name for f in dataclasses.fields(FeatureTarget)}
    wanted = {"model", "exposure", "public", "priors", "memory"}
    assert fields == wanted | {"comparisons", "noise_share", "corruptions"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_image_cannot_be_reached_from_what_an_attack_is_given(kind: str) -> None:
    case = feature_case(kind, count=1)
    given = {"target": case.target, "observation": case.observation}
    found = [where for where, t in tensors(given) if shows(t, case.images)]
    assert found == []


def test_settings_survive_json(attack: FeatureAttack) -> None:
    for one in (attack, type(attack)()):
        text = json.dumps(one.settings())
        again = type(one).model_validate(json.loads(text))
        assert again == one
        assert again.settings() == one.settings()


def test_refuses_what_it_does_not_know(attack: FeatureAttack) -> None:
    with pytest.raises(ValidationError, match="not permitted"):
        type(attack).model_validate({"no_such_setting": 1})
    for name in type(attack).model_fields:
        with pytest.raises(ValidationError):
            type(attack)(**{name: object()})


def test_is_frozen(attack: FeatureAttack) -> None:
    for name in type(attack).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(attack, name, getattr(attack, name))


def test_every_setting_is_explained(attack: FeatureAttack) -> None:
    source = inspect.getsource(type(attack))
    for name in type(attack).model_fields:
        declared = source.split(f"    {name}:", 1)[1].split("\n", 1)
        assert declared[1].lstrip().startswith('"""'), f"{name} has no docstring"


def test_photographs_differ() -> None:
    """So that the tests above cannot pass by one image for all."""
    images = photographs(2)
    assert float((images[0] - images[1]).abs().mean()) > 0.05
