"""Token ids that a user hands over, turned into a checked sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privaudit.config import AuditConfig
from privaudit.errors import ConfigError
from privaudit.inventory.embeddings import Embedding

IDS = "input_ids"
EXTRAS = ("attention_mask", "token_type_ids")
"""Further inputs of text models that are passed on."""


@dataclass(frozen=True, eq=False)
class TokenSample:
    """What a user handed over, as integer ids.

    Attributes:
        ids: (batch, positions), int64.
        labels: As given, one per sequence; None when left out.
        keyword: The key of a mapping sample; None: ids are given by position.
        extras: Further inputs by name, each (batch, positions).
    """

    ids: Tensor
    labels: Tensor | None
    keyword: str | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)


def is_tokens(model: nn.Module, sample: Any) -> bool:
    """True for samples that no image can be: two dimensions, or ``input_ids``.

    Floats of two dimensions count where the model has an embedding, so that the
    refusal can say what is wrong.
    """
    if isinstance(sample, Mapping):
        return IDS in sample
    pair = isinstance(sample, tuple | list) and len(sample) == 2
    ids = sample[0] if pair else sample
    if not isinstance(ids, Tensor) or ids.dim() > 2:
        return False
    integer = not ids.is_floating_point() and ids.dtype not in (torch.bool, torch.uint8)
    return integer or any(
        isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules()
    )


def read_tokens(sample: Any) -> TokenSample:
    """Check ids, labels and further inputs.

    Args:
        sample: ids; (ids, labels); or {"input_ids": …, "labels": …} with an optional
            ``attention_mask`` or ``token_type_ids``.

    Raises:
        ConfigError: Not integers, not (batch, positions), or of different lengths.
    """
    ids, labels, keyword, extras = _split(sample)
    checked = _ids(ids)
    named = {name: _like(value, checked, name) for name, value in extras.items()}
    return TokenSample(checked, _labels(labels, len(checked)), keyword, named)


def _split(sample: Any) -> tuple[Any, Any, str | None, dict[str, Any]]:
    if isinstance(sample, Mapping):
        extras = {n: sample[n] for n in EXTRAS if sample.get(n) is not None}
        other = set(sample) - {IDS, "labels", "label", *EXTRAS}
        if other:
            raise ConfigError(
                "sample",
                expected=f"{IDS}, labels, and at most {' and '.join(EXTRAS)}",
                got=f"also {', '.join(sorted(map(str, other)))}",
                hint="Leave the others out, or wrap the model so that it makes them.",
            )
        return sample[IDS], sample.get("labels", sample.get("label")), IDS, extras
    if isinstance(sample, tuple | list):
        return sample[0], sample[1], None, {}
    return sample, None, None, {}


def _ids(ids: Any) -> Tensor:
    tensor = _tensor(ids, "sample")
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise ConfigError(
            "sample",
            expected="integer ids of shape (batch, positions): the model has an "
            "embedding",
            got=f"{tensor.dtype} of shape {tuple(tensor.shape)}",
            hint="Pass what the tokenizer gives, for example ids.long(). Images have "
            "shape (batch, channels, height, width).",
        )
    if tensor.dim() != 2 or not tensor.numel():
        raise ConfigError(
            "sample",
            expected="ids of shape (batch, positions)",
            got=str(tuple(tensor.shape)),
            hint="One sequence: ids[None]. Pad sequences to one length.",
        )
    return tensor.long()


def _tensor(value: Any, where: str) -> Tensor:
    try:
        return torch.as_tensor(value).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            where,
            expected="a tensor of integers, or lists of one length",
            got=f"{type(value).__name__} ({error})",
            hint='Tokenizers give one with padding=True, return_tensors="pt".',
        ) from error


def _like(value: Any, ids: Tensor, name: str) -> Tensor:
    tensor = _tensor(value, f"sample[{name!r}]")
    if tensor.shape != ids.shape:
        raise ConfigError(
            f"sample[{name!r}]",
            expected=f"shape {tuple(ids.shape)} as the ids",
            got=str(tuple(tensor.shape)),
            hint="Take both from one call of the tokenizer.",
        )
    return tensor


def _labels(labels: Any, count: int) -> Tensor | None:
    if labels is None:
        return None
    tensor = _tensor(labels, "labels")
    tensor = tensor[None] if tensor.dim() == 0 else tensor
    if len(tensor) != count:
        raise ConfigError(
            "labels",
            expected=f"{count}, one per sequence",
            got=str(len(tensor)),
            hint="Pass as many labels as sequences, in the same order.",
        )
    return tensor


def refuse_image_settings(config: AuditConfig) -> None:
    """Ids have no mean, no range and no bands.

    Raises:
        ConfigError: One was given.
    """
    for name in ("mean", "value_range", "shown_bands"):
        given = getattr(config, name)
        if given is not None:
            raise ConfigError(
                f"Auditor.{name}",
                expected="none, and no std, since the sample is token ids",
                got=str(list(given)),
                hint="It is about images. Leave it out.",
            )
    if config.client.autocast is not None:
        raise ConfigError(
            "Auditor.client.autocast",
            expected="no autocast, since the sample is token ids",
            got=config.client.autocast,
            hint="Audits on token ids run in the model's own precision.",
        )
    steps, optimizer = config.client.local_steps, config.client.optimizer
    if steps > 1 or optimizer != "sgd":
        raise ConfigError(
            "Auditor.client.local_steps",
            expected="one step of SGD, since the sample is token ids",
            got=f"{steps} of {optimizer}",
            hint="Audits on token ids do not simulate other steps yet.",
        )


def check_range(ids: Tensor, embeddings: Sequence[Embedding]) -> None:
    """Every id must have a row.

    Raises:
        ConfigError: One has none; it is named with the size of the vocabulary.
    """
    for embedding in embeddings:
        for position, offset in embedding.offsets.items():
            rows = ids[:, position] + offset
            outside = ((rows < 0) | (rows >= embedding.size)).nonzero().flatten()
            if len(outside):
                row = int(outside[0])
                raise ConfigError(
                    f"sequence {row}, position {position}",
                    expected=f"an id from {max(0, -offset)} to "
                    f"{embedding.size - 1 - offset} (vocabulary size of "
                    f"{embedding.path}: {embedding.size - max(0, offset)})",
                    got=str(int(ids[row, position])),
                    hint="Check that tokenizer and model belong together.",
                )


def counted(sample: TokenSample, embeddings: Sequence[Embedding]) -> Tensor:
    """(batch, positions): False where padding stands, by mask or by padding id."""
    mask = sample.extras.get("attention_mask")
    kept = torch.ones_like(sample.ids, dtype=torch.bool) if mask is None else mask != 0
    for embedding in embeddings:
        if embedding.padding is None:
            continue
        for position, offset in embedding.offsets.items():
            kept[:, position] &= sample.ids[:, position] + offset != embedding.padding
    return kept
