"""Audits on token ids: what is taken, what is refused, and what the verdict says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Client, Knowledge, Policy
from privaudit.attacks import TOKEN_ATTACKS
from privaudit.errors import ConfigError, UnsupportedModelError
from privaudit.result import AuditResult
from privaudit.verdict import Limit
from tests.models.text import Text, flat, table, text

IDS = torch.tensor([[5, 29, 2, 22, 49], [40, 23, 22, 27, 34]])
LABELS = torch.tensor([0, 2])
NAME = "token_closed_form"
ONE = Client(batch_size=1)


def audit(model: nn.Module, sample: Any, **settings: Any) -> AuditResult:
    return Auditor(model, **settings).audit(sample)


def values(result: AuditResult, metric: str) -> list[float | None]:
    return [s.value for s in result.attacks[NAME].scores[metric]]


def test_the_ids_of_a_batch_leak_as_a_set() -> None:
    """Hard case 39, as it is written there."""
    result = audit(flat(), (IDS, LABELS))
    (leak,) = result.attacks[NAME].leaked_ids
    assert leak.ids == sorted(set(IDS.flatten().tolist()))
    assert result.verdict.word == "leaks"
    assert result.verdict.exit_code == 1
    assert values(result, "token_set_recall") == [1.0, 1.0]
    assert values(result, "token_accuracy") == [None, None]
    assert result.attacks[NAME].scores["token_accuracy"][0].note == "no order found"
    assert result.attacks[NAME].tokens == [None, None]


def test_one_sequence_a_step_leaks_in_order() -> None:
    result = audit(flat(), (IDS, LABELS), client=ONE)
    assert result.attacks[NAME].tokens == IDS.tolist()
    assert result.attacks[NAME].state == "exact"
    assert values(result, "token_accuracy") == [1.0, 1.0]
    assert "token_set_recall 1.0000 beyond limit 0.5000" in result.verdict.line
    assert "sample" in result.verdict.line
    assert "image" not in result.verdict.line
    assert not result.passed(max_ssim=0.5)


def test_image_metrics_are_off_and_not_zero() -> None:
    record = audit(flat(), (IDS, LABELS)).record
    assert record.kind == "tokens"
    assert set(record.attacks[0].evidence.scores) == {
        "token_accuracy",
        "token_set_recall",
    }
    assert "not applicable" in record.metrics_off["ssim"]
    assert record.unrelated == []


def test_the_positive_control_is_a_step_of_our_own() -> None:
    control = audit(flat(dropout=0.5), (IDS, LABELS)).record.positive_control
    assert control is not None
    assert control.passed
    assert control.model == "the model without dropout"
    assert control.ssim is None


def test_a_mapping_with_padding() -> None:
    ids, mask = padded()
    sample = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1])}
    result = audit(text(Text(dropout=0.1)), sample, client=ONE)
    assert values(result, "token_accuracy") == [1.0, 1.0]
    assert result.attacks[NAME].tokens[1] == [*ids[1, :4].tolist(), None, None]
    assert result.record.samples[1].padding == [4, 5]


def padded() -> tuple[Tensor, Tensor]:
    ids = torch.tensor([[4, 9, 17, 4, 33, 8], [7, 7, 51, 2, 0, 0]])
    return ids, (ids != 0).long()


def test_padding_never_counts() -> None:
    """A text of one word among padding: its one id is all there is."""
    ids = torch.tensor([[7, 0, 0, 0, 0, 0]])
    result = audit(text(), (ids, torch.tensor([1])))
    assert values(result, "token_set_recall") == [1.0]
    assert result.verdict.word == "leaks"


def test_nothing_but_padding_has_no_score() -> None:
    ids = torch.zeros(1, 6, dtype=torch.long)
    result = audit(text(), (ids, torch.tensor([1])))
    assert result.verdict.word == "inconclusive"
    assert (
        "nothing but padding" in result.attacks[NAME].scores["token_set_recall"][0].note
    )


def test_labels_left_out_are_the_models_own() -> None:
    result = audit(flat(), IDS)
    assert {s.label_source for s in result.record.samples} == {"model's own argmax"}
    many = torch.randint(50, (20, 5), generator=torch.Generator().manual_seed(0))
    assert len(audit(flat(), many).record.samples) == 20


def test_the_attacker_needs_no_labels() -> None:
    knows = Knowledge(labels="inferred")
    result = audit(flat(), (IDS, LABELS), client=ONE, knowledge=knows)
    assert result.attacks[NAME].tokens == IDS.tolist()
    assert "the labels" in result.record.threat_model.does_not_know


def test_labels_that_are_the_text_are_not_given_away() -> None:
    """A language model: its labels are as private as its ids."""

    def next_token(output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(
            output[:, None].expand(-1, 6, -1).transpose(1, 2), labels
        )

    ids, _ = padded()
    result = audit(text(Text(tied=True)), (ids, ids), loss=next_token)
    assert "the labels" in result.record.threat_model.does_not_know


@pytest.mark.parametrize("together", [True, False])
def test_a_record_of_categories_leaks_whole(together: bool) -> None:
    rows = torch.tensor([[2, 7, 0, 33], [0, 11, 0, 33]])
    model = table(together=together)
    result = audit(model, (rows, torch.tensor([1, 0])), client=ONE)
    assert result.attacks[NAME].tokens == rows.tolist()
    both = audit(model, (rows, torch.tensor([1, 0])))
    ids = {tuple(leak.positions): leak.ids for leak in both.attacks[NAME].leaked_ids}
    assert ids == {(0,): [0, 2], (1,): [7, 11], (2,): [0], (3,): [33]}


def test_the_model_comes_back_untouched() -> None:
    model = text(Text(dropout=0.2))
    before = copy.deepcopy(model.state_dict())
    model.eval()
    audit(model, (padded()[0], LABELS), client=ONE)
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


def test_a_custom_training_step() -> None:
    def step(model: nn.Module, ids: Any, labels: Tensor | None) -> Tensor:
        out: Tensor = model(**ids).square().mean()
        return out

    sample = {"input_ids": padded()[0]}
    result = audit(text(), sample, training_step=step, client=ONE)
    assert values(result, "token_accuracy") == [1.0, 1.0]


def test_the_inventory_knows_the_positions() -> None:
    inventory = Auditor(text(Text(dropout=0.1))).inventory(padded()[0])
    assert inventory.input_shape == [6]
    assert any(c.p == 0.1 for c in inventory.stochastic)


def test_dropout_is_said_not_to_protect() -> None:
    found = audit(flat(dropout=0.5), (IDS, LABELS)).record.inventory.findings
    assert found[0].code == "dropout-no-protection"
    assert found[0].severity == "critical"


def test_a_policy_without_token_limits_still_sees_the_leak() -> None:
    policy = Policy(name="mine", limits={"ssim": Limit(limit=0.9)})
    assert audit(flat(), (IDS, LABELS), policy=policy).verdict.word == "leaks"


def test_a_frozen_embedding_hides_the_set_but_not_from_the_next_layer() -> None:
    model = flat()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    both = audit(model, (IDS, LABELS))
    assert both.verdict.word == "not run"
    assert "is not shared" in both.attacks[NAME].record.outcomes[0].forms[0].reason
    assert audit(model, (IDS, LABELS), client=ONE).verdict.word == "leaks"


REFUSED: list[tuple[nn.Module, Any, str]] = [
    (flat(), (IDS.float(), LABELS), "expected integer ids"),
    (flat(), {"input_ids": IDS.float()}, "expected integer ids"),
    (flat(), IDS[0], r"ids of shape \(batch, positions\), got \(5,\)"),
    (
        flat(),
        (torch.tensor([[1, 2, 57, 4, 5]]), [0]),
        r"sequence 0, position 2: expected an id from 0 to 49 "
        r"\(vocabulary size of 0: 50\), got 57",
    ),
    (flat(), (torch.tensor([[1, 2, 3, 4, -1]]), [0]), "position 4: .*got -1"),
    (flat(), (IDS, [0, 5]), "label at index 1"),
    (flat(), (IDS, [0]), "expected 2, one per sequence"),
    (flat(), {"input_ids": [[1, 2], [3]]}, "lists of one length"),
    (flat(), {"input_ids": IDS, "pixels": IDS}, "also pixels"),
    (text(), {"input_ids": IDS, "attention_mask": IDS[:1]}, "as the ids"),
]


@pytest.mark.parametrize(("model", "sample", "message"), REFUSED)
def test_what_is_refused(model: nn.Module, sample: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        audit(model, sample)


def test_settings_of_images_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Auditor\.mean: expected none"):
        audit(flat(), IDS, mean=0.5, std=0.5)
    with pytest.raises(ConfigError, match=r"Auditor\.value_range: expected none"):
        audit(flat(), IDS, value_range=(0, 49))
    with pytest.raises(ConfigError, match="no autocast"):
        audit(flat(), IDS, client=Client(autocast="bfloat16"))
    with pytest.raises(ConfigError, match="since the sample is token ids"):
        audit(flat(), IDS, attacks=["closed_form"])
    with pytest.raises(ConfigError, match="audit\\(\\) and inventory\\(\\) only"):
        Auditor(flat()).plan(IDS)
    gradients = {n: torch.zeros_like(p) for n, p in flat().named_parameters()}
    with pytest.raises(ConfigError, match="audit\\(\\) and inventory\\(\\) only"):
        Auditor(flat()).attack_gradient(gradients, batch_size=2, truth=(IDS, LABELS))


def test_models_that_cannot_take_the_ids() -> None:
    images = nn.Sequential(nn.Flatten(), nn.Linear(5, 2))
    with pytest.raises(UnsupportedModelError, match="runs on 5 ids"):
        audit(images, IDS)
    with pytest.raises(UnsupportedModelError, match="runs on 20 ids"):
        audit(text(), torch.ones(1, 20, dtype=torch.long))

    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.o = nn.Linear(50, 2)

        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.o(F.one_hot(ids, 50).float().mean(1))
            return out

    with pytest.raises(UnsupportedModelError, match="an embedding that takes"):
        audit(OneHot(), IDS)


def test_the_attacks_round_trip() -> None:
    for name, cls in TOKEN_ATTACKS.items():
        assert cls.tiny().name == name
        assert cls.model_validate_json(cls.tiny().model_dump_json()) == cls.tiny()
