"""What every countermeasure must do. Not edited for a new countermeasure."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from privaudit.countermeasures import (
    COUNTERMEASURES,
    Countermeasure,
    SeenFeatures,
    SeenGradient,
)
from privaudit.defenses import DEFENSES, ClientStepContext, Defense, Detection
from privaudit.defenses.base import FEATURES, GRADIENT
from privaudit.errors import ConfigError
from tests.contract.cases import Case, case_of, leaky, shows, tensors
from tests.contract.feature_cases import FeatureCase, feature_case

KINDS = ("tokens", "nchw", "vector")
NAMES = sorted(COUNTERMEASURES)
Seen = SeenFeatures | SeenGradient
ANSWERED = [
    (name, place, defense)
    for name in NAMES
    for place in (*KINDS, GRADIENT)
    for defense in sorted(COUNTERMEASURES[name].against)
    if (GRADIENT if place == GRADIENT else FEATURES) in COUNTERMEASURES[name].exposures
]


def make(name: str) -> Countermeasure:
    return COUNTERMEASURES[name].tiny()


@dataclass(frozen=True, eq=False)
class Place:
    """What an attacker got through a defense, and what it knows of that.

    Attributes:
        case: Both sides.
        seen: What came.
        found: The defense, with its settings.
    """

    case: FeatureCase | Case
    seen: Seen
    found: Detection

    @classmethod
    def of(cls, where: str, defense: str) -> Place:
        """What is sent where the defense acts; as it is where it cannot act."""
        if where == GRADIENT:
            return cls._gradient(_untrained(defense, GRADIENT), defense)
        case, acting = feature_case(where), _untrained(defense, FEATURES)
        sent = case.observation
        if acting:
            try:
                sent = case.target.exposure.observe(
                    case.target.model, case.batch, defenses=acting
                )
            except ConfigError:
                acting = []
        missing = case.observation.features.shape[1] - sent.features.shape[1]
        if missing:
            blank = sent.features.new_zeros(len(sent), missing, sent.features.shape[2])
            sent = replace(sent, features=torch.cat([sent.features, blank], 1))
        return cls(case, SeenFeatures(case.target, sent), _found(acting, defense))

    @classmethod
    def _gradient(cls, acting: Sequence[Defense], defense: str) -> Place:
        case = case_of(leaky())
        sent, draws = case.step.observation, torch.Generator().manual_seed(0)
        context = ClientStepContext(
            case.target.exposure, case.model, case.batch, case.step.tape
        )
        for one in acting:
            defended = one.apply_gradient(sent.gradients, context, draws)
            sent = replace(sent, gradients=defended)
        return cls(case, SeenGradient(case.target, sent), _found(acting, defense))

    def answered(self, one: Countermeasure, seed: int = 0) -> Seen:
        """How the attacker looks at it then."""
        draws = torch.Generator().manual_seed(seed)
        if isinstance(self.seen, SeenFeatures):
            return one.see_features(self.seen, self.found, draws)
        return one.see_gradient(self.seen, self.found, draws)

    @property
    def images(self) -> Tensor:
        """The truth."""
        return self.case.batch.images


def _untrained(name: str, exposure: str) -> list[Defense]:
    known = DEFENSES[name]
    usable = exposure in known.exposures and not known.trained
    return [known.tiny()] if usable else []


def _found(acting: Sequence[Defense], defense: str) -> Detection:
    if acting:
        return acting[0].declared()
    return Detection(defense=defense, confidence=1.0, evidence="stated by the user")


def sent_values(seen: Seen) -> list[Tensor]:
    """What came, as this attacker looks at it."""
    if isinstance(seen, SeenFeatures):
        return [seen.observation.features]
    return [*seen.observation.gradients.values()]


def guessed(place: Place, seen: Seen) -> tuple[list[Tensor], list[Tensor]]:
    """The truth as a guess, and what came, as the attacker compares both."""
    if isinstance(seen, SeenFeatures):
        with torch.no_grad():
            mine = seen.target.exposure.predict(seen.target.model, place.images)
            ours, theirs = seen.target.compared(mine, seen.observation.features)
        return [ours], [theirs]
    left: Any = dict(place.case.step.observation.gradients)  # type: ignore[union-attr]
    right: Any = dict(seen.observation.gradients)
    for compare in seen.target.comparisons:
        left, right = compare(left, right)
    assert set(left) == set(right)
    return [left[n] for n in right], [right[n] for n in right]


@pytest.mark.parametrize("name", NAMES)
def test_states_its_facts(name: str) -> None:
    kind = COUNTERMEASURES[name]
    assert kind.name == name == name.strip().lower() != ""
    assert kind.title
    assert kind.source
    assert kind.exposures
    assert kind.exposures <= {FEATURES, GRADIENT}
    assert (kind.__doc__ or "").strip()
    assert kind.against
    assert kind.against <= set(DEFENSES), "no such defense"
    for defense in kind.against:
        assert kind.exposures & DEFENSES[defense].exposures


def test_names_are_not_shared_between_files() -> None:
    modules = [c.__module__ for c in COUNTERMEASURES.values()]
    assert len(set(modules)) == len(modules)


@pytest.mark.parametrize(("name", "where", "defense"), ANSWERED)
def test_both_sides_stay_comparable(name: str, where: str, defense: str) -> None:
    place = Place.of(where, defense)
    seen = place.answered(make(name))
    assert type(seen) is type(place.seen)
    assert seen.observation.image_shape == place.seen.observation.image_shape
    assert all(bool(v.isfinite().all()) for v in sent_values(seen))
    if isinstance(seen, SeenFeatures) and isinstance(place.seen, SeenFeatures):
        assert len(seen.observation) == len(place.seen.observation)
        assert seen.target.exposure.layout == place.seen.target.exposure.layout
    ours, theirs = guessed(place, seen)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
        assert bool(mine.isfinite().all())
        assert bool(other.isfinite().all())
    assert 0 <= seen.target.noise_share <= 1


@pytest.mark.parametrize(("name", "where", "defense"), ANSWERED)
def test_the_guess_keeps_its_graph(name: str, where: str, defense: str) -> None:
    place = Place.of(where, defense)
    seen = place.answered(make(name))
    if not isinstance(seen, SeenFeatures):
        return
    leaf = place.images.clone().mul(0.9).requires_grad_()
    guess = seen.target.exposure.predict(seen.target.model, leaf)
    ours, theirs = seen.target.compared(guess, seen.observation.features)
    (slope,) = torch.autograd.grad((ours - theirs.detach()).square().sum(), leaf)
    assert bool(slope.isfinite().all())
    assert float(slope.abs().sum()) > 0


@pytest.mark.parametrize(("name", "where", "defense"), ANSWERED)
def test_rows_do_not_depend_on_each_other(name: str, where: str, defense: str) -> None:
    place = Place.of(where, defense)
    seen = place.answered(make(name))
    if not isinstance(seen, SeenFeatures):
        return
    (ours,), (theirs,) = guessed(place, seen)
    with torch.no_grad():
        mine = seen.target.exposure.predict(seen.target.model, place.images[:1])
        alone = seen.target.compared(mine, seen.observation.features[:1])
    torch.testing.assert_close(alone[0], ours[:1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone[1], theirs[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "where", "defense"), ANSWERED)
def test_says_what_it_did_and_changes_nothing(
    name: str, where: str, defense: str
) -> None:
    place = Place.of(where, defense)
    model = place.seen.target.model
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    wants = [p.requires_grad for p in model.parameters()]
    hooks = [len(m._forward_hooks) for m in model.modules()]
    given = [v.clone() for v in sent_values(place.seen)]
    world = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    seen = place.answered(make(name))
    assert seen is place.seen or len(seen.notes) > len(place.seen.notes)
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wants
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert all(p.grad is None for p in model.parameters())
    pairs = zip(given, sent_values(place.seen), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(torch.get_rng_state(), world[0])
    assert random.getstate() == world[1]
    assert np.random.get_state()[1].tolist() == world[2]  # type: ignore[index]


@pytest.mark.parametrize(("name", "where", "defense"), ANSWERED)
def test_is_deterministic_for_one_seed(name: str, where: str, defense: str) -> None:
    place = Place.of(where, defense)
    first, again = place, Place.of(where, defense)
    one, other = first.answered(make(name), 7), again.answered(make(name), 7)
    assert one.notes == other.notes
    for a, b in zip(sent_values(one), sent_values(other), strict=True):
        assert torch.equal(a, b)
    for left, right in zip(guessed(first, one), guessed(again, other), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(("name", "where", "defense"), ANSWERED)
def test_the_image_cannot_be_reached_from_what_it_gives_back(
    name: str, where: str, defense: str
) -> None:
    place = Place.of(where, defense)
    seen = place.answered(make(name))
    given = {"target": seen.target, "observation": seen.observation}
    assert [w for w, t in tensors(given) if shows(t, place.images)] == []


@pytest.mark.parametrize("name", NAMES)
def test_takes_no_truth(name: str) -> None:
    kind = COUNTERMEASURES[name]
    for method in (kind.see_features, kind.see_gradient):
        wanted = ["self", "seen", "found", "generator"]
        assert list(inspect.signature(method).parameters) == wanted
    for record in (SeenFeatures, SeenGradient):
        assert {f.name for f in fields(record)} == {"target", "observation", "notes"}


@pytest.mark.parametrize("name", NAMES)
def test_leaves_the_other_exposure_alone(name: str) -> None:
    one = make(name)
    elsewhere = {FEATURES: "tokens", GRADIENT: GRADIENT}
    for exposure in {FEATURES, GRADIENT} - one.exposures:
        place = Place.of(elsewhere[exposure], "none")
        assert place.answered(one) is place.seen


@pytest.mark.parametrize("name", NAMES)
def test_settings_survive_json(name: str) -> None:
    for one in (make(name), COUNTERMEASURES[name]()):
        again = type(one).model_validate(json.loads(json.dumps(one.settings())))
        assert again == one
        assert again.settings() == one.settings()


@pytest.mark.parametrize("name", NAMES)
def test_is_frozen_and_refuses_what_it_does_not_know(name: str) -> None:
    one = make(name)
    with pytest.raises(ValidationError, match="not permitted"):
        type(one).model_validate({"no_such_setting": 1})
    source = inspect.getsource(type(one))
    for field in type(one).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(one, field, getattr(one, field))
        with pytest.raises(ValidationError):
            type(one)(**{field: object()})
        declared = source.split(f"    {field}:", 1)[1].split("\n", 1)
        assert declared[1].lstrip().startswith('"""'), f"{field} has no docstring"
