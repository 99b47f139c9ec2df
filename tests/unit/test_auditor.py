"""The façade: settings, budgets, seeds, one client per image, a model left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from privaudit import Auditor, Budget, Client, Knowledge
from privaudit._controls import shipped_images
from privaudit.attacks import ClosedForm
from privaudit.errors import ConfigError, PrivauditError
from privaudit.result import AuditResult
from tests.contract.cases import leaky, silent
from tests.models.vit import small_vit

SHAPE = (3, 12, 12)


def sample(count: int = 1) -> tuple[Tensor, Tensor]:
    return shipped_images(count + 1, SHAPE)[1:], torch.arange(count) % 10


def audit(
    model: nn.Module | None = None, count: int = 1, **settings: Any
) -> AuditResult:
    settings.setdefault("attacks", ["closed_form"])
    settings.setdefault("client", Client(batch_size=1))
    auditor = Auditor(model or leaky(), mean=0.5, std=0.25, **settings)
    return auditor.audit(sample(count))


def comparable(result: AuditResult) -> dict[str, Any]:
    """The record without what time and place put into it."""
    record = json.loads(result.record.model_dump_json())
    record.pop("provenance")
    record["positive_control"].pop("seconds")
    for attack in record["attacks"]:
        attack.pop("seconds")
    return record  # type: ignore[no-any-return]


def test_one_seed_one_result() -> None:
    first, again = audit(count=3, seed=5), audit(count=3, seed=5)
    assert comparable(first) == comparable(again)
    a, b = (r.attacks["closed_form"].reconstructions for r in (first, again))
    assert torch.equal(a, b)
    assert first.images.get("images/closed_form-0000.png") == again.images.get(
        "images/closed_form-0000.png"
    )


def test_the_seed_decides_the_masks() -> None:
    """Other masks, another gradient, another rounding."""
    a, b = (
        audit(count=1, seed=s).attacks["closed_form"].record.outcomes[0].residual
        for s in (0, 1)
    )
    assert a != b


def test_the_worlds_generators_and_the_model_are_left_alone() -> None:
    model = leaky()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    audit(model, count=2)
    assert torch.equal(state, torch.get_rng_state())
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("build", [leaky, silent])
@pytest.mark.parametrize("attacks", [["closed_form"], "auto", "all"])
def test_no_time_never_clears_a_model(build: Any, attacks: Any) -> None:
    result = audit(build(), attacks=attacks, budget=Budget(seconds=1e-3))
    assert result.verdict.word in ("leaks", "inconclusive")
    assert not result.passed()
    if result.verdict.word == "inconclusive":
        assert "attack-stopped" in {c.code for c in result.verdict.causes}
        assert result.attacks["closed_form"].state == "stopped"
        assert result.attacks["closed_form"].record.evidence.reason


@pytest.mark.parametrize(
    ("size", "count", "clients"),
    [(1, 3, [0, 1, 2]), (2, 3, [0, 0, 1]), (3, 3, [0, 0, 0]), (None, 3, [0, 0, 0])],
)
def test_images_are_dealt_to_clients_in_order(
    size: int | None, count: int, clients: list[int]
) -> None:
    result = audit(count=count, client=Client(batch_size=size))
    assert [s.client for s in result.record.samples] == clients
    assert [s.index for s in result.record.samples] == list(range(count))
    assert len(result.attacks["closed_form"].record.outcomes) == count


def test_a_rest_of_one_image_leaks_though_the_batch_does_not() -> None:
    """Three images in steps of two: the last client has one, and is read off."""
    result = audit(count=3, client=Client(batch_size=2))
    states = [o.state for o in result.attacks["closed_form"].record.outcomes]
    assert states == ["skipped", "skipped", "exact"]
    assert result.verdict.word == "leaks"
    assert result.worst["ssim"].sample == 2
    scores = result.attacks["closed_form"].scores["ssim"]
    assert [s.value is None for s in scores] == [True, True, False]
    assert scores[0].note == "no reconstruction"


def test_a_larger_batch_than_images_is_one_step() -> None:
    result = audit(count=2, client=Client(batch_size=9))
    assert {s.client for s in result.record.samples} == {0}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"attacks": "nothing"}, '"auto", "all", or a list'),
        ({"attacks": []}, '"auto", "all", or a list'),
        ({"attacks": ["closed_from"]}, "one of .*closed_form"),
        ({"attacks": ["closed_form", ClosedForm()]}, "unique labels"),
        ({"budget": "endless"}, "one of quick, standard, thorough"),
        ({"mean": 0.5}, "mean and std together"),
        ({"loss": torch.dot, "training_step": torch.dot}, "loss= or training_step="),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Auditor(leaky(), **settings)


def test_records_are_closed() -> None:
    for build in (Client, Knowledge, Budget, ClosedForm):
        with pytest.raises(ValidationError, match="Extra inputs"):
            build(no_such_setting=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        Client(batch_size=0)
    with pytest.raises(ValidationError):
        Budget(seconds=0)


def test_no_sample_is_no_audit() -> None:
    with pytest.raises(ConfigError, match="or \\(images, labels\\)"):
        Auditor(leaky()).audit(None)
    with pytest.raises(TypeError):
        Auditor(leaky(), no_such_setting=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.half])
def test_other_precisions_run_or_are_refused_in_words(convert: Any) -> None:
    """Never a raw error out of torch."""
    try:
        word: str = audit(convert(leaky())).verdict.word
    except PrivauditError as error:
        word = str(error)
    assert word != "no leak found"


def test_the_settings_given_are_on_record() -> None:
    attack = ClosedForm(forms=("first_linear",))
    result = audit(attacks=[attack])
    record = result.attacks["closed_form"].record
    assert record.settings == record.settings_given == {"forms": ["first_linear"]}
    assert result.record.config.attack_settings == {
        "closed_form": {"forms": ["first_linear"]}
    }
    plain = audit().attacks["closed_form"].record
    assert plain.settings_given == {}
    assert plain.settings["forms"]


def test_a_label_that_is_ignored_gives_no_gradient_and_is_no_safety() -> None:
    """-100 for one client of two: that step has no gradient, and clears nothing."""
    images, _ = sample(2)
    auditor = Auditor(
        leaky(), mean=0.5, std=0.25, client=Client(batch_size=1),
        attacks=["closed_form"],
    )  # fmt: skip
    result = auditor.audit((images, torch.tensor([3, -100])))
    ends = [o.state for o in result.attacks["closed_form"].record.outcomes]
    assert ends == ["exact", "failed"]
    note = result.attacks["closed_form"].record.outcomes[1].note
    assert "no information" in note


def test_an_ignored_label_of_one_client_does_not_hide_the_next() -> None:
    """What was learnt of the model at the first client serves all others."""
    auditor = Auditor(small_vit(), client=Client(batch_size=1), attacks=["closed_form"])
    images = shipped_images(3, (3, 16, 16))[1:]
    result = auditor.audit((images, torch.tensor([-100, 3])))
    ends = [o.state for o in result.attacks["closed_form"].record.outcomes]
    assert ends == ["failed", "exact"]
    assert result.verdict.word == "leaks"


@pytest.mark.parametrize(("side", "word"), [(8, "leaks"), (2, "inconclusive")])
def test_small_images_are_not_cleared_for_want_of_ssim(side: int, word: str) -> None:
    """Below 11 pixels the window shrinks; 2 x 2 has no SSIM and clears nothing."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3 * side * side, 16), nn.GELU(), nn.Linear(16, 10)
    )
    auditor = Auditor(model, client=Client(batch_size=1), attacks=["closed_form"])
    images = shipped_images(3, (3, side, side))[1:]
    result = auditor.audit((images, torch.tensor([1, 2])))
    assert result.attacks["closed_form"].state == "exact"
    assert result.verdict.word == word
    if word == "inconclusive":
        assert "first: image 0 (ssim is not defined here)" in result.verdict.line


def test_clients_that_do_not_fit_into_memory_are_made_again_and_score_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 12 * 12, 16), nn.GELU(), nn.Dropout(0.5),
        nn.Linear(16, 4),
    )  # fmt: skip
    images, labels = torch.rand(3, 3, 12, 12), torch.tensor([0, 1, 2])
    auditor = Auditor(model, client=Client(batch_size=1), attacks=["closed_form"])
    kept = auditor.audit((images, labels))
    monkeypatch.setattr("privaudit._session.KEPT_BYTES", 0)
    made_again = auditor.audit((images, labels))
    assert made_again.record.attacks[0].outcomes == kept.record.attacks[0].outcomes
    assert torch.equal(
        made_again.attacks["closed_form"].reconstructions,
        kept.attacks["closed_form"].reconstructions,
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_own_grad_mode_does_not_matter(mode: Any) -> None:
    model = leaky()
    with mode():
        result = audit(model)
        assert not torch.is_grad_enabled()
    assert result.attacks["closed_form"].state == "exact"


def test_a_model_without_parameters_is_refused_in_words() -> None:
    with pytest.raises(PrivauditError, match="got a model without parameters"):
        audit(nn.Flatten())


def test_images_of_another_size_are_said_to_be_the_likely_cause() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(7, 10))
    with pytest.raises(PrivauditError, match=r"the size and the channels.*--size"):
        audit(model)


def test_a_lazy_model_is_refused_before_a_forward_pass_could_change_it() -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
    with pytest.raises(PrivauditError, match=r"1\.weight.*lazy parameter"):
        audit(model)
    assert isinstance(model[1], nn.LazyLinear)
    assert model(torch.zeros(1, 3, 12, 12)).shape == (1, 10)
