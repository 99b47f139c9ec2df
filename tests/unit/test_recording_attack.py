"""Attacking a recorded gradient: the scores of a live audit, and none without truth."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, AuditResult, Budget, Client
from privaudit.attacks.closed_form import ClosedForm
from privaudit.attacks.dropout_inversion import DropoutInversion
from privaudit.attacks.inverting_gradients import InvertingGradients
from privaudit.attacks.well_informed import WellInformed
from privaudit.errors import ConfigError
from privaudit.recording import RecordedStep, Update, record_step
from privaudit.verdict import Limit, Policy
from tests.unit.command import ROOT
from tests.unit.recording import backward, batch, conv, mlp, plain_gradient, sgd

SEED = 7
QUICK = Budget(seconds=60, iterations=20)
LADDER = [ClosedForm(), DropoutInversion.tiny()]
CHILD = f"""
import torch
from privaudit import record_step
from tests.unit.recording import backward, batch, mlp, sgd

model = mlp()
torch.manual_seed({SEED})
with record_step(model) as step:
    backward(model, *batch())
    sgd(model).step()
step.save("update.safetensors")
"""


def recorded(model: nn.Module, count: int = 1, *, masks: bool = False) -> RecordedStep:
    torch.manual_seed(SEED)
    with record_step(model, masks=masks) as step:
        backward(model, *batch(count))
    model.zero_grad()
    return step


def auditor(model: nn.Module, **given: Any) -> Auditor:
    given.setdefault("budget", QUICK)
    return Auditor(model, seed=SEED, client=Client(batch_size=1), **given)


def codes(result: AuditResult) -> list[str]:
    return [f.code for f in result.record.inventory.findings]


def causes(result: AuditResult) -> list[str]:
    return [c.code for c in result.verdict.causes]


def test_recorded_in_another_process_it_scores_as_the_live_audit(
    tmp_path: Path,
) -> None:
    subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    live = auditor(mlp()).audit(batch())
    model = mlp()
    state = {n: v.clone() for n, v in model.state_dict().items()}
    later = auditor(model).attack_gradient(
        tmp_path / "update.safetensors", batch_size=1, truth=batch()
    )
    assert later.attacks.keys() == live.attacks.keys()
    for label, attack in live.attacks.items():
        assert later.attacks[label].state == attack.state
        assert later.attacks[label].scores == attack.scores
    assert later.verdict.line == live.verdict.line
    assert later.verdict.word == "leaks"
    torch.testing.assert_close(
        later.attacks["closed_form"].reconstructions,
        live.attacks["closed_form"].reconstructions,
        rtol=0,
        atol=0,
    )
    assert all(torch.equal(state[n], v) for n, v in model.state_dict().items())
    assert "recorded-update" in codes(later)
    assert later.record.preflight.replay_error is None
    assert "recorded from a client" in later.record.threat_model.exposure


def test_with_its_masks_the_audit_checks_itself_at_the_truth(tmp_path: Path) -> None:
    model = mlp()
    step = recorded(model, masks=True)
    path = step.save(tmp_path / "u", masks=True)
    for given in (step, step.update, path, str(path)):
        result = auditor(model).attack_gradient(given, batch_size=1, truth=batch())
        assert result.verdict.word == "leaks"
        check = result.record.preflight
        assert check.loss_at_truth is not None
        assert check.loss_at_truth < 1e-5


def test_the_wrong_truth_is_no_exact_match() -> None:
    model = mlp()
    images, labels = batch(2)
    result = auditor(model).attack_gradient(
        recorded(model), batch_size=1, truth=(images[1:], labels[:1])
    )
    closed = result.attacks["closed_form"]
    assert closed.state == "failed"
    assert "another image" in closed.record.evidence.reason
    assert result.verdict.word != "no leak found"


def test_without_masks_a_diagnostic_does_not_run() -> None:
    model = mlp()
    result = auditor(model, attacks=[ClosedForm(), WellInformed()]).attack_gradient(
        recorded(model), batch_size=1, truth=batch()
    )
    informed = result.attacks["well_informed"]
    assert informed.state == "skipped"
    assert "masks" in informed.record.evidence.reason


def test_a_search_is_scored_without_masks() -> None:
    model = conv()
    result = auditor(model, attacks=LADDER).attack_gradient(
        recorded(model), batch_size=1, truth=batch()
    )
    search = result.attacks["dropout_inversion"].record
    assert search.loss_truth is None
    assert search.masks == []
    assert len(search.evidence.scores["ssim"]) == 1


def test_masks_of_another_model_are_refused() -> None:
    step = recorded(mlp(), masks=True).update
    wrong = Update(step.gradients, step.facts, recorded(conv(), masks=True).masks)
    with pytest.raises(ConfigError, match=r"expected the dropout calls that this"):
        auditor(mlp()).attack_gradient(wrong, batch_size=1, truth=batch())


@pytest.mark.parametrize("labels", [None, batch()[1]])
def test_without_truth_a_recomputed_gradient_is_a_leak(labels: Tensor | None) -> None:
    model = mlp()
    result = auditor(model).attack_gradient(
        recorded(model), batch_size=1, truth=None if labels is None else (None, labels)
    )
    assert result.verdict.word == "leaks"
    assert result.verdict.exit_code == 1
    worst = result.worst["gradient_match"]
    assert worst.value < 1e-5
    assert "gradient_match" in result.verdict.line
    assert result.attacks["closed_form"].state == "exact"
    assert "no-truth" in causes(result)
    # The picture really is the client's, which nobody told the audit.
    torch.testing.assert_close(
        result.attacks["closed_form"].reconstructions, batch()[0], rtol=0, atol=1e-3
    )
    record = result.record
    assert not record.truth_known
    assert record.config.knowledge.labels == ("inferred" if labels is None else "known")
    assert record.samples[0].label == (None if labels is None else 3)
    assert record.samples[0].image is None
    assert record.config.policy.name == "default-1+gradient_match"
    assert record.provenance.data_digest == recorded(model).update.digest()


def test_a_verdict_without_truth_survives_the_disk(tmp_path: Path) -> None:
    model = mlp()
    result = auditor(model).attack_gradient(recorded(model), batch_size=1)
    result.save(tmp_path / "out")
    again = AuditResult.load(tmp_path / "out")
    assert again.judge(again.record.config.policy) == result.verdict
    assert again.judge(Policy()).exit_code == 3
    assert again.record.evidence().truth_known is False
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "gradient_match" in page
    assert "an image that gives the whole gradient again" in page


@pytest.mark.parametrize("policy", [None, Policy(limits={})])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_without_truth_nothing_is_cleared(policy: Policy | None, p: float) -> None:
    model = conv(p)
    result = auditor(model, policy=policy, attacks=LADDER).attack_gradient(
        recorded(model), batch_size=1
    )
    assert result.verdict.word == "inconclusive"
    assert result.verdict.exit_code == 3
    assert result.attacks["dropout_inversion"].state == "plateau"
    assert causes(result)[0] == "no-truth"
    assert "the images of the step were not given" in result.verdict.line
    assert not result.passed()


@pytest.mark.parametrize("count", [1, 3])
def test_no_attack_that_applies_is_not_run(count: int) -> None:
    model = conv()
    result = auditor(model, attacks=[ClosedForm(), WellInformed()]).attack_gradient(
        recorded(model, count), batch_size=count
    )
    assert result.verdict.word == "not run"
    assert [a.state for a in result.attacks.values()][:2] == ["skipped", "skipped"]
    assert len(result.record.samples) == count


def test_a_wrong_batch_size_is_no_match() -> None:
    model = mlp(0.0)
    result = auditor(model).attack_gradient(recorded(model, 3), batch_size=1)
    assert result.verdict.word in ("inconclusive", "not run")


class Trivial(ClosedForm):
    """Claims that grey is exact."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        found = super().run(*args, **kwargs)
        return replace(found, images=torch.full((1, 3, 16, 16), 0.5), state="exact")


def test_a_claim_that_does_not_give_the_gradient_is_none() -> None:
    model = mlp()
    result = auditor(model, attacks=[Trivial()]).attack_gradient(
        recorded(model), batch_size=1
    )
    assert result.verdict.word == "inconclusive"
    assert result.attacks["closed_form"].state == "plateau"
    (score,) = result.attacks["closed_form"].scores["gradient_match"]
    assert score.value is not None
    assert score.value > 1e-2


def test_an_image_that_the_first_layer_sees_only_a_part_of_is_no_leak() -> None:
    """What is found has the same means as the client's image, and is another one."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(48, 16), nn.GELU(), nn.Linear(16, 10)
    )
    result = auditor(model).attack_gradient(recorded(model), batch_size=1)
    closed = result.attacks["closed_form"]
    assert closed.state == "plateau"
    assert "does not see the whole image" in closed.record.evidence.reason
    assert result.verdict.word == "inconclusive"
    # With the truth the same is found out by the image.
    result = auditor(model).attack_gradient(
        recorded(model), batch_size=1, truth=batch()
    )
    assert result.attacks["closed_form"].state == "failed"


class Lucky(InvertingGradients):
    """A search that ends at the client's own image."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        found = super().run(*args, **kwargs)
        return replace(found, images=batch()[0])


def test_a_search_on_too_few_values_is_no_leak() -> None:
    model = mlp(0.0)
    search = Lucky(schedule=InvertingGradients.tiny().schedule)
    whole = auditor(model, attacks=[search]).attack_gradient(
        recorded(model), batch_size=1
    )
    assert whole.verdict.word == "leaks"
    model[1].requires_grad_(False)  # type: ignore[index]
    head = auditor(model, attacks=[search]).attack_gradient(
        recorded(model), batch_size=1
    )
    assert head.verdict.word == "inconclusive"
    reason = head.attacks[search.name].record.evidence.reason
    assert "the first layer is not shared" in reason


def test_a_vit_under_dropout_is_never_cleared_without_truth() -> None:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(
        image_size=16, patch_size=4, num_layers=1, num_heads=2, hidden_dim=32,
        mlp_dim=32, num_classes=10, dropout=0.1,
    )  # fmt: skip
    nn.init.normal_(model.heads.head.weight, std=0.02)
    result = auditor(model).attack_gradient(recorded(model), batch_size=1)
    assert result.verdict.word == "inconclusive"
    closed = result.attacks["closed_form"]
    assert "masks do not show in the gradient" in closed.record.evidence.reason
    scored = auditor(model).attack_gradient(
        recorded(model), batch_size=1, truth=batch()
    )
    assert scored.verdict.word == "leaks"


def test_a_scale_that_was_searched_is_recomputed_as_well() -> None:
    """Without dropout and bias the scale is searched; it is exact where it is alone."""
    model = mlp(0.0, bias=False)
    result = auditor(model).attack_gradient(recorded(model), batch_size=1)
    closed = result.attacks["closed_form"]
    assert closed.state == "exact"
    assert result.verdict.word == "leaks"


def test_a_gradient_of_zero_says_nothing() -> None:
    model = mlp(0.0)
    zeros = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    result = auditor(model, attacks=[ClosedForm(), InvertingGradients()])
    found = result.attack_gradient(zeros, batch_size=1, image_shape=(3, 16, 16))
    assert found.verdict.word == "inconclusive"


def test_a_mapping_needs_the_shape_where_nobody_states_it() -> None:
    model = mlp(0.0)
    gradients = plain_gradient(model, *batch())
    with pytest.raises(ConfigError, match=r"image_shape=\).*the model does not state"):
        auditor(model).attack_gradient(gradients, batch_size=1)
    found = auditor(model).attack_gradient(
        gradients, batch_size=1, image_shape=(3, 16, 16)
    )
    assert found.verdict.word == "leaks"


def test_a_weight_difference_can_be_attacked_and_says_how_it_is_rounded() -> None:
    model = mlp()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    optimizer = sgd(model, lr=1e-4)
    torch.manual_seed(SEED)
    backward(model, *batch())
    optimizer.step()
    update = Update.from_delta(before, model.state_dict(), lr=1e-4)
    model.load_state_dict(before)
    result = auditor(model).attack_gradient(update, batch_size=1, truth=batch())
    assert result.verdict.word != "no leak found"
    assert "update-rounded" in codes(result)


def test_eval_mode_is_attacked_as_it_was_recorded() -> None:
    model = mlp().eval()
    step = recorded(model)
    model.train()
    result = auditor(model).attack_gradient(step, batch_size=1, truth=batch())
    assert result.record.config.client.mode == "as_is"
    assert result.record.preflight.loss_at_truth is not None
    assert result.record.preflight.loss_at_truth < 1e-5
    assert model.training


def test_other_weights_are_refused_unless_wanted() -> None:
    model = mlp(0.0)
    step = recorded(model)
    other = mlp(0.0, seed=3)
    with pytest.raises(ConfigError, match="made with other weights"):
        auditor(other).attack_gradient(step, batch_size=1)
    result = auditor(other).attack_gradient(step, batch_size=1, other_weights=True)
    assert result.verdict.word == "inconclusive"


@pytest.mark.parametrize("size", [0, -1, 1.0, None, True])
def test_a_batch_size_that_is_none(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"batch_size=\): expected the number of im"):
        auditor(mlp()).attack_gradient(recorded(mlp()), batch_size=size)


def test_what_is_no_update() -> None:
    with pytest.raises(ConfigError, match=r"attack_gradient\(update\).*got int"):
        auditor(mlp()).attack_gradient(7, batch_size=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("truth", "match"),
    [
        (batch(2), r"expected all 1 images of the step, got 2"),
        (
            (torch.rand(1, 1, 16, 48), torch.tensor([0])),
            r"images of shape \(3, 16, 16\).*got \(1, 16, 48\)",
        ),
    ],
)
def test_a_truth_of_another_step(truth: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        auditor(mlp()).attack_gradient(recorded(mlp()), batch_size=1, truth=truth)


def test_the_limit_can_be_set() -> None:
    policy = Policy(
        name="mine",
        limits={"gradient_match": Limit(limit=1e-12, lower_is_leakier=True)},
    )
    result = auditor(mlp(), policy=policy).attack_gradient(
        recorded(mlp()), batch_size=1
    )
    assert result.verdict.word == "inconclusive"
    assert result.record.config.policy == policy
