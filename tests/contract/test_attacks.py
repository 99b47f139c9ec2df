"""What every attack of the registry must do. Not edited for a new attack."""

from __future__ import annotations

import dataclasses
import inspect
import json
import random

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from privaudit._runner import Client, Clock, run
from privaudit.attacks import ATTACKS, Attack
from privaudit.types import Observation, Reconstruction
from tests.contract.cases import (
    BUDGET,
    Case,
    case_of,
    leaky,
    picture,
    shows,
    silent,
    tensors,
)

SEEN: list[dict[str, object]] = []


@pytest.fixture(params=sorted(ATTACKS))
def attack(request: pytest.FixtureRequest) -> Attack:
    """The tiny instance of every attack in turn."""
    return ATTACKS[str(request.param)].tiny()


@pytest.fixture(scope="module")
def case() -> Case:
    return case_of(leaky())


def test_states_its_facts(attack: Attack) -> None:
    assert attack.name == attack.name.strip().lower() != ""
    assert attack.title
    assert attack.source
    assert (type(attack).__doc__ or "").strip()
    assert not (attack.diagnostic and attack.required)


def test_gives_finite_pixels_of_the_right_shape(attack: Attack, case: Case) -> None:
    found = case.attack(attack)
    assert isinstance(found, Reconstruction)
    assert found.state not in ("failed", "skipped"), found.reason
    assert found.images is not None
    assert found.images.shape == case.batch.images.shape
    assert found.images.dtype == torch.float32
    assert bool(found.images.isfinite().all())
    assert float(found.images.min()) >= 0
    assert float(found.images.max()) <= 1
    assert not found.images.requires_grad


def test_a_search_gets_somewhere(attack: Attack, case: Case) -> None:
    searched = getattr(case.attack(attack), "search", None)
    if searched is not None:
        assert searched.loss_final < searched.loss_start


def test_every_end_has_a_reason(attack: Attack, case: Case) -> None:
    for one in (case, case_of(silent())):
        found = case.attack(attack) if one is case else one.attack(attack)
        if found.state in ("failed", "skipped", "stopped"):
            assert found.reason
        assert all(f.form and f.reason for f in found.forms)


def test_skips_or_breaks_in_words_where_it_does_not_apply(attack: Attack) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Sigmoid(), torch.nn.Flatten(),
        torch.nn.Linear(400, 10),
    )  # fmt: skip
    found = case_of(model).attack(attack)
    if found.images is None:
        assert found.state in ("skipped", "failed")
        assert found.reason
        assert all(f.reason for f in found.forms)


def test_leaves_the_model_bit_for_bit(attack: Attack) -> None:
    case = case_of(leaky())
    before = {k: v.clone() for k, v in case.model.state_dict().items()}
    modes = [m.training for m in case.model.modules()]
    wants = [p.requires_grad for p in case.model.parameters()]
    state = torch.get_rng_state()
    case.attack(attack)
    after = case.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert [m.training for m in case.model.modules()] == modes
    assert [p.requires_grad for p in case.model.parameters()] == wants
    assert all(p.grad is None for p in case.model.parameters())
    assert torch.equal(torch.get_rng_state(), state), "draws from the world"


def _numpy_state() -> list[object]:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    inner = state["state"]
    return [inner["key"].tolist(), inner["pos"], state["has_gauss"], state["gauss"]]


def test_draws_from_nothing_but_its_generator(attack: Attack) -> None:
    """Hard case 12: torch, numpy and Python are left where they were, step by step."""
    case = case_of(leaky())
    before = torch.get_rng_state(), _numpy_state(), random.getstate()
    case.attack(attack)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert _numpy_state() == before[1]
    assert random.getstate() == before[2]


def test_is_deterministic_for_one_seed(attack: Attack) -> None:
    first, again = (case_of(leaky()).attack(attack, seed=7) for _ in range(2))
    assert first.state == again.state
    assert first.residual == again.residual
    assert first.images is not None
    assert again.images is not None
    assert torch.equal(first.images, again.images)


def test_takes_no_truth(attack: Attack) -> None:
    names = list(inspect.signature(attack.run).parameters)
    assert names == ["target", "observation", "budget", "generator"]
    fields = {f.name for f in dataclasses.fields(Observation)}
    assert fields == {"gradients", "batch_size", "image_shape"}


class _Spy(Attack):
    """Keeps what an attack is given."""

    name = "spy"
    title = "Spy"
    source = "this test"

    @classmethod
    def tiny(cls) -> _Spy:
        return cls()

    def run(self, target, observation, *, budget, generator):  # type: ignore[no-untyped-def]
        SEEN.append(
            {
                "target": target,
                "observation": observation,
                "budget": budget,
                "generator": generator,
            }
        )
        return Reconstruction(None, "skipped", "only looks")


class _DiagnosticSpy(_Spy):
    """Declares that it is given the masks."""

    name = "diagnostic_spy"
    diagnostic = True
    required = False


def _given(images: Tensor, spy: Attack | None = None) -> dict[str, object]:
    """What the runner really passes to an attack on ``images``."""
    case = case_of(leaky(), images)
    SEEN.clear()
    client = Client(case.batch, case.step, range(1))
    run(
        spy or _Spy(), case.target, [client],
        labels_known=True, clock=Clock(BUDGET), seed=0,
    )  # fmt: skip
    return SEEN[-1] | {"secrets": case}


def _leaks(given: dict[str, object]) -> list[str]:
    case = given.pop("secrets")
    assert isinstance(case, Case)
    secrets = {"image": case.batch.images}
    secrets |= {
        f"mask {d.name}": d.value for d in case.step.tape if d.value is not None
    }
    assert len(secrets) == 2
    return [
        f"{where} shows {what}"
        for where, tensor in tensors(given)
        for what, secret in secrets.items()
        if shows(tensor, secret)
    ]


def test_neither_image_nor_mask_can_be_reached_by_an_attack() -> None:
    assert _leaks(_given(picture())) == []


def test_only_a_diagnostic_attack_can_reach_the_masks() -> None:
    found = _leaks(_given(picture(), _DiagnosticSpy()))
    assert found
    assert all("mask" in line for line in found)


def test_the_search_for_the_truth_would_find_it() -> None:
    image = picture()
    secret = image * 4 - 2
    hidden = {"a": [{"b": (lambda: secret)}]}
    assert any(shows(t, image) for _, t in tensors(hidden))
    loss = ((image.clone().requires_grad_() * 2) ** 2).sum()
    assert any(shows(t, image) for _, t in tensors({"loss": loss}))


def test_nothing_but_the_gradient_depends_on_the_image() -> None:
    """Scale and sign cannot come from the truth: two images, one set of facts."""
    facts, plain = [], []
    for given in (_given(picture(0)), _given(picture(1))):
        given.pop("secrets")
        observation = given.pop("observation")
        assert isinstance(observation, Observation)
        names = list(observation.gradients)
        assert names == [n for n, _ in leaky().named_parameters()]
        plain.append((names, observation.batch_size, observation.image_shape))
        facts.append(dict(tensors(given)))
    assert plain[0] == plain[1]
    assert list(facts[0]) == list(facts[1])
    for where, value in facts[0].items():
        assert torch.equal(value, facts[1][where]), f"{where} depends on the image"


def test_a_zero_gradient_is_never_exact_and_never_nan(attack: Attack) -> None:
    case = case_of(silent())
    assert not any(bool(g.any()) for g in case.step.observation.gradients.values())
    client = Client(case.batch, case.step, range(1))
    ran = run(
        attack, case.target, [client], labels_known=True, clock=Clock(BUDGET), seed=0
    )
    (found,) = ran.outcomes
    assert found.state != "exact"
    assert found.residual is None or found.residual == found.residual
    if found.images is not None:
        assert bool(found.images.isfinite().all())


def test_settings_survive_json(attack: Attack) -> None:
    for one in (attack, type(attack)()):
        text = json.dumps(one.settings())
        again = type(one).model_validate(json.loads(text))
        assert again == one
        assert again.settings() == one.settings()
    given = json.loads(json.dumps(attack.settings_given()))
    assert type(attack).model_validate(given) == attack


def test_refuses_what_it_does_not_know(attack: Attack) -> None:
    with pytest.raises(ValidationError, match="not permitted"):
        type(attack).model_validate({"no_such_setting": 1})
    for name in type(attack).model_fields:
        with pytest.raises(ValidationError):
            type(attack)(**{name: object()})


def test_is_frozen(attack: Attack) -> None:
    for name in type(attack).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(attack, name, getattr(attack, name))


def test_every_setting_is_explained(attack: Attack) -> None:
    """By a docstring below the field or a line in the class docstring."""
    source = inspect.getsource(type(attack))
    for name in type(attack).model_fields:
        declared = source.split(f"{name}:", 1)[1].split("\n", 1)
        follows = declared[1].lstrip()
        nested = hasattr(type(attack).model_fields[name].annotation, "model_fields")
        assert follows.startswith('"""') or nested, f"{name} has no docstring"
