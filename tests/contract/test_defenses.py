"""What every defense must do. Not edited for a new defense."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from privaudit.config import Client
from privaudit.defenses import DEFENSES, ClientStepContext, Defense, TrainData
from privaudit.defenses.base import FEATURES, GRADIENT
from privaudit.errors import ConfigError, MissingDependencyError
from privaudit.exposure import FeatureExposure, GradientExposure
from privaudit.types import Batch
from tests.contract.cases import Case, case_of, leaky
from tests.contract.feature_cases import FeatureCase, feature_case, photographs
from tests.models.vit import small_vit

KINDS = ("tokens", "nchw", "vector")
NAMES = sorted(DEFENSES)
PLACES = (*KINDS, GRADIENT)
TRAINED = [n for n in NAMES if DEFENSES[n].trained]


def acts_on(name: str, exposure: str) -> bool:
    return exposure in DEFENSES[name].exposures


def exposure_of(place: str) -> str:
    return GRADIENT if place == GRADIENT else FEATURES


ACTING = [(n, p) for n in NAMES for p in PLACES if acts_on(n, exposure_of(p))]
ELSEWHERE = [(n, e) for n in NAMES for e in (FEATURES, GRADIENT) if not acts_on(n, e)]
Sent = Mapping[str, Tensor]
"""What leaves a device or a client, by name."""
HINTS = ("Cut the model", "Cut where", "leave the defense out")


def train_data(shape: tuple[int, int, int]) -> TrainData:
    """A few photographs with made-up labels."""
    images = photographs(24)[..., : shape[1], : shape[2]]
    labels = torch.arange(24) % 10

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, 24, 8):
            yield images[start : start + 8], labels[start : start + 8]

    return TrainData(batches, F.cross_entropy)


@dataclass(frozen=True, eq=False)
class Place:
    """Where a defense acts: on features of some layout, or on a gradient.

    Attributes:
        case: What would leave without it, from both sides.
        defense: Fitted.
        model: As the defense left it.
        history: Losses of its training by name.
    """

    case: FeatureCase | Case
    defense: Defense
    model: nn.Module
    history: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, defense: Defense, where: str) -> Place:
        """Fit it there."""
        case = case_of(leaky()) if where == GRADIENT else feature_case(where)
        draws = torch.Generator().manual_seed(0)
        exposure = case.target.exposure
        shape = case.batch.shape
        fitted = defense.fit(
            case.target.model, train_data(shape), exposure=exposure, generator=draws
        )
        return cls(case, fitted.defense, fitted.model, fitted.history)

    def clean(self) -> Sent:
        """Without the defense."""
        exposure, batch = self.case.target.exposure, self.case.batch
        if isinstance(exposure, GradientExposure):
            return exposure.observe(self.model, batch, seed=0).observation.gradients
        one = Batch(batch.images[:1], None)
        return {"features": exposure.observe(self.model, one).features}

    def act(self, sent: Sent, generator: torch.Generator) -> Sent:
        """What leaves instead; skips where it says that it does not act on such."""
        exposure, batch = self.case.target.exposure, self.case.batch
        try:
            if isinstance(exposure, FeatureExposure):
                found = self.defense.apply_features(
                    sent["features"], exposure.layout, generator
                )
                return {"features": found}
            step = exposure.observe(self.model, batch, seed=0)
            context = ClientStepContext(exposure, self.model, batch, step.tape)
            return self.defense.apply_gradient(sent, context, generator)
        except MissingDependencyError as error:
            pytest.skip(str(error))
        except ConfigError as error:
            if any(h in error.hint for h in HINTS):
                pytest.skip(str(error))
            raise


@pytest.fixture(params=NAMES)
def defense(request: pytest.FixtureRequest) -> Defense:
    """The tiny instance of every defense in turn."""
    return DEFENSES[str(request.param)].tiny()


@pytest.fixture(params=ACTING, ids="-".join)
def place(request: pytest.FixtureRequest) -> Place:
    """Every defense wherever it acts."""
    name, where = request.param
    return Place.of(DEFENSES[name].tiny(), where)


def test_states_its_facts(defense: Defense) -> None:
    assert defense.name == defense.name.strip().lower() != ""
    assert defense.title
    assert defense.source or defense.name == "none"
    assert defense.exposures
    assert defense.exposures <= {FEATURES, GRADIENT}
    assert defense.does_not_protect.endswith(".")
    assert (type(defense).__doc__ or "").strip()


def test_every_defense_acts_somewhere() -> None:
    """So that the tests below cannot pass by skipping all of a defense's places."""
    for name in NAMES:
        acted = 0
        for _, where in [a for a in ACTING if a[0] == name]:
            place = Place.of(DEFENSES[name].tiny(), where)
            try:
                place.act(place.clean(), torch.Generator().manual_seed(0))
            except pytest.skip.Exception as skipped:
                if "pip install" in str(skipped):
                    acted += 1
                continue
            acted += 1
        assert acted, name


def test_keeps_shape_dtype_and_device(place: Place) -> None:
    sent = place.clean()
    found = place.act(sent, torch.Generator().manual_seed(0))
    assert set(found) == set(sent)
    for name, value in found.items():
        assert value.dtype == sent[name].dtype
        assert value.device == sent[name].device
        assert bool(value.isfinite().all())
        assert not value.requires_grad
        fewer_tokens = (
            place.defense.name == "token_drop"
            and value.shape[1] < sent[name].shape[1]
            and value.shape[2:] == sent[name].shape[2:]
        )
        assert value.shape == sent[name].shape or fewer_tokens


def test_does_not_change_what_it_is_given(place: Place) -> None:
    sent = place.clean()
    before = {n: v.clone() for n, v in sent.items()}
    place.act(sent, torch.Generator().manual_seed(0))
    assert all(torch.equal(before[n], sent[n]) for n in before)


def test_draws_from_its_generator_alone(place: Place) -> None:
    sent = place.clean()
    draws = [torch.Generator().manual_seed(s) for s in (1, 1, 2)]
    first, again, other = (place.act(sent, g) for g in draws)
    assert all(torch.equal(first[n], again[n]) for n in first)
    untouched = torch.Generator().manual_seed(1).get_state()
    drew = not torch.equal(draws[0].get_state(), untouched)
    differs = any(not torch.equal(first[n], other[n]) for n in first)
    assert drew == differs


def test_does_something(place: Place) -> None:
    """To what is sent, to the model, or to how the client makes its steps."""
    sent, client = place.clean(), Client()
    found = place.act(sent, torch.Generator().manual_seed(0))
    changed = [n for n in sent if not torch.equal(found[n], sent[n])]
    bound = getattr(place.defense, "max_norm", None)
    norm = torch.stack([v.norm() for v in sent.values()]).norm()
    inside = bound is not None and norm <= bound
    another = place.model is not place.case.target.model
    other_client = place.defense.changed_client(client) != client
    nothing = place.defense.name == "none"
    assert nothing != bool(changed or inside or another or other_client)


@pytest.mark.parametrize("name", TRAINED)
def test_training_gives_another_model(name: str) -> None:
    defense = DEFENSES[name].tiny()
    with pytest.raises(ConfigError, match="fit"):
        defense.require_fitted()
    place = Place.of(defense, GRADIENT if acts_on(name, GRADIENT) else "tokens")
    place.defense.require_fitted()
    given = place.case.target.model
    assert place.model is not given
    assert place.defense.settings() == defense.settings()
    before, after = given.state_dict(), place.model.state_dict()
    moved = any(k not in before or not torch.equal(before[k], after[k]) for k in after)
    assert moved or not place.history  # no losses: only settings were changed


@pytest.mark.parametrize(("name", "where"), ACTING)
def test_leaves_the_model_and_the_world_bit_for_bit(name: str, where: str) -> None:
    case = case_of(leaky()) if where == GRADIENT else feature_case(where)
    model = case.target.model
    model.train(where == GRADIENT)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    wants = [p.requires_grad for p in model.parameters()]
    world = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    fitted = (
        DEFENSES[name]
        .tiny()
        .fit(
            model,
            train_data(case.batch.shape),
            exposure=case.target.exposure,
            generator=torch.Generator().manual_seed(0),
        )
    )
    place = Place(case, fitted.defense, fitted.model)
    place.act(place.clean(), torch.Generator().manual_seed(0))
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wants
    assert all(p.grad is None for p in model.parameters())
    assert all(not m._forward_hooks for m in model.modules())
    assert all(not m._forward_pre_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), world[0])
    assert random.getstate() == world[1]
    assert np.random.get_state()[1].tolist() == world[2]  # type: ignore[index]


@pytest.mark.parametrize(("name", "exposure"), ELSEWHERE)
def test_says_where_it_cannot_act(name: str, exposure: str) -> None:
    defense = DEFENSES[name].tiny()
    place = Place(
        feature_case("tokens") if exposure == FEATURES else case_of(leaky()),
        defense,
        small_vit().eval() if exposure == FEATURES else leaky(),
    )
    sent, draws = place.clean(), torch.Generator()
    with pytest.raises(ConfigError, match=f"expected a defense of {exposure}"):
        place.act(sent, draws)


def test_tells_the_attacker_its_settings(defense: Defense) -> None:
    told = defense.declared()
    assert told.defense == defense.name
    assert told.found
    numbers = {
        n: v for n, v in defense.settings().items()
        if isinstance(v, int | float) and not isinstance(v, bool)
    }  # fmt: skip
    assert told.estimate == pytest.approx(numbers)


def test_settings_survive_json(defense: Defense) -> None:
    for one in (defense, type(defense)()):
        text = json.dumps(one.settings())
        again = type(one).model_validate(json.loads(text))
        assert again == one
        assert again.settings() == one.settings()


def test_refuses_what_it_does_not_know(defense: Defense) -> None:
    with pytest.raises(ValidationError, match="not permitted"):
        type(defense).model_validate({"no_such_setting": 1})
    for name in type(defense).model_fields:
        with pytest.raises(ValidationError):
            type(defense)(**{name: object()})


def test_is_frozen(defense: Defense) -> None:
    for name in type(defense).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(defense, name, getattr(defense, name))


def test_every_setting_is_explained(defense: Defense) -> None:
    for name in type(defense).model_fields:
        (own,) = [
            c
            for c in type(defense).__mro__
            if name in vars(c).get("__annotations__", {})
        ]
        source = inspect.getsource(own)
        declared = source.split(f"    {name}:", 1)[1].split("\n", 1)
        assert declared[1].lstrip().startswith('"""'), f"{name} has no docstring"
