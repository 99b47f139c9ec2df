"""Text models as people use them: what one training step gives away of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Client
from privaudit.result import AuditResult

tf: Any = pytest.importorskip("transformers", reason="extra not installed")

VOCABULARY = 300
ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 40,
    "num_labels": 3,
}  # fmt: skip
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
NAME = "token_closed_form"


def made(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def ids(count: int = 2, length: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(5, VOCABULARY, (count, length), generator=generator)


def next_token(output: Any, labels: Tensor) -> Tensor:
    logits = output.logits[:, :-1].reshape(-1, VOCABULARY)
    return F.cross_entropy(logits, labels[:, 1:].reshape(-1))


def values(result: AuditResult, metric: str) -> list[float | None]:
    return [s.value for s in result.attacks[NAME].scores[metric]]


def roberta() -> nn.Module:
    config = tf.RobertaConfig(**ENCODER, pad_token_id=1)
    model: nn.Module = tf.RobertaForSequenceClassification(config)
    return model


def distilbert() -> nn.Module:
    config = tf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=64, n_layers=2, n_heads=4, hidden_dim=96,
        max_position_embeddings=40, num_labels=3,
    )  # fmt: skip
    model: nn.Module = tf.DistilBertForSequenceClassification(config)
    return model


def bert() -> nn.Module:
    model: nn.Module = tf.BertForSequenceClassification(tf.BertConfig(**ENCODER))
    return model


@pytest.mark.parametrize("build", [bert, roberta, distilbert])
def test_a_classifier_gives_the_text_away_through_its_dropout(
    build: Callable[[], nn.Module],
) -> None:
    sample = {"input_ids": ids(), "labels": torch.tensor([0, 2])}
    result = Auditor(made(build), client=Client(batch_size=1)).audit(sample)
    assert result.attacks[NAME].tokens == ids().tolist()
    assert any(c.active for c in result.record.inventory.stochastic)
    assert result.verdict.word == "leaks"


def test_padding_and_token_types() -> None:
    text, mask = ids(), torch.ones(2, 12, dtype=torch.long)
    text[1, 7:], mask[1, 7:] = 0, 0
    sample = {"input_ids": text, "attention_mask": mask, "labels": torch.tensor([0, 2])}
    sample["token_type_ids"] = torch.zeros_like(text)
    result = Auditor(made(bert), client=Client(batch_size=1)).audit(sample)
    assert values(result, "token_accuracy") == [1.0, 1.0]


def gpt2(dropout: float) -> nn.Module:
    config = tf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=40,
        embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout, **ENDS,
    )  # fmt: skip
    model: nn.Module = tf.GPT2LMHeadModel(config)
    return model


@pytest.mark.parametrize("batch_size", [1, None])
def test_a_language_model_with_tied_weights_and_dropout(
    batch_size: int | None,
) -> None:
    auditor = Auditor(
        made(lambda: gpt2(0.1)), loss=next_token, client=Client(batch_size=batch_size)
    )
    result = auditor.audit((ids(), ids()))
    assert values(result, "token_set_recall") == [1.0, 1.0]
    assert "the labels" in result.record.threat_model.does_not_know


def test_a_language_model_without_dropout_gives_its_order() -> None:
    """All but the last token, whose output is not trained on."""
    auditor = Auditor(
        made(lambda: gpt2(0.0)), loss=next_token, client=Client(batch_size=1)
    )
    result = auditor.audit((ids(), ids()))
    assert values(result, "token_accuracy") == [pytest.approx(11 / 12)] * 2


def test_rotary_positions_give_the_set_alone() -> None:
    config = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96,
        "max_position_embeddings": 40, **ENDS,
    }  # fmt: skip
    model = made(lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**config)))
    result = Auditor(model, loss=next_token).audit((ids(), ids()))
    recalls = values(result, "token_set_recall")
    assert all(r is not None and r >= 0.9 for r in recalls)
    assert values(result, "token_accuracy") == [None, None]
