"""One audit on token ids from sample to result. The model is pristine around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from privaudit import _labels
from privaudit._ladder import absent_for_tokens, choose_for_tokens
from privaudit._pixels import Normalisation
from privaudit._provenance import provenance
from privaudit._runner import Clock
from privaudit._token_controls import token_control
from privaudit._token_runner import TokenClient, TokenRun, run_tokens, token_record
from privaudit._tokens import (
    TokenSample,
    check_range,
    counted,
    read_tokens,
    refuse_image_settings,
)
from privaudit.config import AuditConfig
from privaudit.errors import PrivauditError, UnsupportedModelError
from privaudit.exposure import (
    ClientStep,
    GradientExposure,
    relative_error,
    shared_parameters,
)
from privaudit.exposure.output import input_keyword
from privaudit.inventory import Finding, Inventory
from privaudit.inventory.embeddings import Embedding, embeddings_of, remembered
from privaudit.inventory.outside import OutsideWatch
from privaudit.inventory.take import Evidence, take
from privaudit.inventory.token_findings import (
    dropout_does_not_hide_tokens,
    order_needs_one,
)
from privaudit.metrics import METRICS
from privaudit.result import (
    AttackRecord,
    AuditRecord,
    AuditResult,
    ImageStore,
    Preflight,
    SampleRecord,
    ThreatModel,
    gather_evidence,
)
from privaudit.tape import Tape
from privaudit.types import TokenBatch, TokenTarget
from privaudit.verdict import AttackEvidence, judge

_SAME_IDS = 0.9
"""Share of the labels that are ids of their own text, from which on they are it."""
_NOT_ON_TOKENS = "not applicable: the samples are token ids"

Callables = tuple[Callable[..., Tensor] | None, Callable[..., Tensor] | None]


@dataclass
class TokenSession:
    """What one audit knows about model and ids before the attack."""

    model: nn.Module
    exposure: GradientExposure
    sample: TokenSample
    embeddings: Sequence[Embedding]
    counted: Tensor
    labels: _labels.Labels
    config: AuditConfig
    first: ClientStep
    inventory: Inventory
    started: float

    def audit(self) -> AuditResult:
        """Attack, score, control, judge."""
        clock = Clock(self.config.budget, self.started)
        clients, target = self._clients(), self._target()
        attacks = choose_for_tokens(self.config.attacks)
        runs = [
            run_tokens(a, target, clients, clock=clock, seed=self.config.seed)
            for a in attacks
        ]
        records = [token_record(r, clients, seed=self.config.seed) for r in runs]
        records += _missing(runs)
        control = token_control(
            [r.attack for r in runs if r.state != "skipped"],
            target,
            self.embeddings,
            self.sample.ids.shape[1],
            budget=self.config.budget,
            seed=self.config.seed,
        )
        check = self._preflight(clients[0].batch)
        samples = self._samples(clients)
        evidence = gather_evidence(len(samples), records, control, [], preflight=check)
        evidence = evidence.model_copy(update={"kind": "tokens"})
        record = AuditRecord(
            kind="tokens",
            metrics_off=dict.fromkeys(METRICS, _NOT_ON_TOKENS),
            verdict=judge(evidence, self.config.policy),
            config=self.config,
            threat_model=self._threat_model(),
            inventory=self._with_findings(runs),
            preflight=check,
            samples=samples,
            attacks=records,
            positive_control=control,
            unrelated=[],
            provenance=provenance(
                self.model,
                self.sample.ids,
                self.config.policy,
                device=str(clients[0].batch.ids.device),
                seconds=time.monotonic() - self.started,
            ),
        )
        return AuditResult(record, ImageStore())

    @property
    def _client_size(self) -> int:
        return self.config.client.batch_size or len(self.sample.ids)

    def _clients(self) -> list[TokenClient]:
        size, total = self._client_size, len(self.sample.ids)
        return [
            self._client(number, range(start, min(start + size, total)))
            for number, start in enumerate(range(0, total, size))
        ]

    def _client(self, number: int, rows: range) -> TokenClient:
        batch = _batch(
            self.model, self.sample, rows, counted=self.counted, labels=self.labels
        )
        seed = self.config.seed + number
        if number == 0:
            return TokenClient(batch, lambda: self.first, rows)
        make = lambda: self.exposure.observe(self.model, batch, seed=seed)  # noqa: E731
        return TokenClient(batch, make, rows)

    def _target(self) -> TokenTarget:
        """What the attacker is given: labels as the config says, no ids."""
        known = self.config.knowledge.labels == "known"
        device = next(self.model.parameters()).device
        size = min(self._client_size, len(self.sample.ids))
        labels = self.labels.rows(0, size, device)
        if labels is not None and not known:
            labels = torch.zeros_like(labels)
        target = _target(self.model, self.exposure, self.sample, labels)
        target.memory.update(remembered(self.embeddings, self.sample.ids.shape[1]))
        return replace(target, labels=None, language=True) if self._language else target

    @property
    def _language(self) -> bool:
        """Whether the labels are the ids: a language model, so nobody knows them."""
        ids, labels = self.sample.ids, self.labels.values
        if labels is None or labels.shape != ids.shape or labels.is_floating_point():
            return False
        set_labels = [row[row >= 0] for row in labels]
        found = [torch.isin(row, i) for row, i in zip(set_labels, ids, strict=True)]
        return bool(torch.cat(found).double().mean() > _SAME_IDS)

    def _preflight(self, batch: TokenBatch) -> Preflight:
        """Whether the first client's step can be recomputed from its own ids."""
        guess = self.exposure.gradient(self.model, batch, tape=self.first.tape)
        error = relative_error(guess, self.first.observation.gradients)
        return Preflight(
            replay_error=None,
            loss_at_truth=error,
            double_backward="not needed: ids have no derivative",
        )

    def _samples(self, clients: Sequence[TokenClient]) -> list[SampleRecord]:
        return [
            SampleRecord(
                index=index,
                name=f"sample {index}",
                client=number,
                label=self.labels.class_id(index),
                label_source=self.labels.source,
                image=None,
                tokens=self.sample.ids[index].tolist(),
                padding=(~self.counted[index]).nonzero().flatten().tolist(),
            )
            for number, client in enumerate(clients)
            for index in client.rows
        ]

    def _with_findings(self, runs: Sequence[TokenRun]) -> Inventory:
        found = [*self.inventory.findings, *self.labels.findings()]
        drops = [c for c in self.inventory.stochastic if c.active and c.p is not None]
        leaking = [o for r in runs for o in r.outcomes if o.leaked]
        if drops and leaking:
            found.insert(0, dropout_does_not_hide_tokens(drops, leaking[0].form))
        if self._client_size > 1:
            found.append(order_needs_one(self._client_size))
        return self.inventory.model_copy(update={"findings": found})

    def _threat_model(self) -> ThreatModel:
        known = self.config.knowledge.labels == "known"
        knows = ["the model and its weights", "the loss",
                 "how many positions a sequence has",
                 "where dropout sits, and its rates"]  # fmt: skip
        hidden = ["the token ids", "where padding stands",
                  "the dropout masks that the client drew"]  # fmt: skip
        if self._language:
            knows.append("that the labels are ids of the text")
        (knows if known and not self._language else hidden).append("the labels")
        return ThreatModel(
            exposure="gradient of one local training step",
            attacker="honest-but-curious server of a federated training",
            sees=[
                f"the gradient of {self.inventory.trainable} parameters, of one step "
                f"on {self._client_size} sequence(s)"
            ],
            knows=knows,
            does_not_know=hidden,
        )


def open_token_session(
    model: nn.Module,
    given: Any,
    *,
    config: AuditConfig,
    notes: Sequence[Finding],
    callables: Callables,
    started: float,
) -> TokenSession:
    """Read the ids, find what embeds them, make the first client's step."""
    loss, training_step = callables
    shared_parameters(model)
    # Settings of attacks on images, which do not run here.
    config = config.model_copy(update={"attack_settings": {}})
    sample = read_tokens(given)
    refuse_image_settings(config)
    exposure = GradientExposure(
        Normalisation(), loss, training_step, config.client.mode
    )
    sample = _named(model, sample)
    embeddings = _embeddings(model, exposure, sample)
    check_range(sample.ids, embeddings)
    kept = counted(sample, embeddings)
    output, eval_tape = _eval_pass(model, exposure, sample)
    labels = _settle(model, exposure, sample, output)
    rows = range(min(config.client.batch_size or len(sample.ids), len(sample.ids)))
    batch = _batch(model, sample, rows, counted=kept, labels=labels)
    with OutsideWatch(model) as watch:
        first = exposure.observe(model, batch, seed=config.seed)
    inventory = take(model, Evidence(first, eval_tape, watch.found, notes))
    shape = {"input_shape": [sample.ids.shape[1]]}
    inventory = inventory.model_copy(update=shape)
    return TokenSession(
        model, exposure, sample, embeddings, kept, labels, config, first, inventory,
        started,
    )  # fmt: skip


def _named(model: nn.Module, sample: TokenSample) -> TokenSample:
    """Ids by name where the model takes them in no other way."""
    keyword = sample.keyword or input_keyword(model)
    return TokenSample(sample.ids, sample.labels, keyword, sample.extras)


def _target(
    model: nn.Module,
    exposure: GradientExposure,
    sample: TokenSample,
    labels: Tensor | None,
) -> TokenTarget:
    dtypes = {name: value.dtype for name, value in sample.extras.items()}
    return TokenTarget(model, exposure, labels, sample.keyword, dtypes)


def _embeddings(
    model: nn.Module, exposure: GradientExposure, sample: TokenSample
) -> list[Embedding]:
    """What takes the ids.

    Raises:
        UnsupportedModelError: Nothing does, or the model cannot run on so many.
    """
    positions = sample.ids.shape[1]
    try:
        found = embeddings_of(_target(model, exposure, sample, None), positions)
    except PrivauditError as error:
        raise UnsupportedModelError(
            error.where,
            expected=f"a model that runs on {positions} ids of 0 and 1",
            got=error.got,
            hint="Check how many positions the model takes, and, where its forward "
            'needs names, pass {"input_ids": …}. Images are float tensors of shape '
            "(batch, channels, height, width).",
        ) from error
    if not found:
        raise UnsupportedModelError(
            type(model).__name__,
            expected="an embedding that takes the integer ids of the sample",
            got="none: no torch.nn.Embedding was called on them",
            hint="Images are float tensors of shape (batch, channels, height, width).",
        )
    return found


def _batch(
    model: nn.Module,
    sample: TokenSample,
    rows: range,
    *,
    counted: Tensor,
    labels: _labels.Labels | None,
) -> TokenBatch:
    device = next(model.parameters()).device
    start, stop = rows.start, rows.stop
    return TokenBatch(
        sample.ids[start:stop].to(device),
        None if labels is None else labels.rows(start, stop, device),
        counted[start:stop].to(device),
        sample.keyword,
        {n: v[start:stop].to(device) for n, v in sample.extras.items()},
    )


def _eval_pass(
    model: nn.Module, exposure: GradientExposure, sample: TokenSample
) -> tuple[Any, Tape]:
    """One forward pass in eval mode on the first sequences."""
    rows = range(min(_labels.AT_ONCE, len(sample.ids)))
    batch = _batch(model, sample, rows, counted=sample.ids >= 0, labels=None)
    return exposure.census(model, batch, train=False)


def _settle(
    model: nn.Module, exposure: GradientExposure, sample: TokenSample, output: Any
) -> _labels.Labels:
    """Check the given labels, or take the model's own."""
    if sample.labels is not None:
        labels = sample.labels
        if exposure.is_classification:
            labels = _labels.checked(labels, exposure.logits(model, output))
        return _labels.Labels(labels, "given")
    if exposure.training_step is not None:
        return _labels.Labels(None, "none")
    found = [exposure.logits(model, output).argmax(1).cpu()]
    for start in range(_labels.AT_ONCE, len(sample.ids), _labels.AT_ONCE):
        rows = range(start, min(start + _labels.AT_ONCE, len(sample.ids)))
        batch = _batch(model, sample, rows, counted=sample.ids >= 0, labels=None)
        more, _ = exposure.census(model, batch, train=False)
        found.append(exposure.logits(model, more).argmax(1).cpu())
    return _labels.Labels(torch.cat(found), "model's own argmax")


def _missing(runs: Sequence[TokenRun]) -> list[AttackRecord]:
    """Attacks of the ladder that this version lacks."""
    exact = bool(runs) and any(r.all_exact for r in runs)
    return [
        AttackRecord(
            evidence=AttackEvidence(
                label=name,
                state="skipped" if exact else "missing",
                skip="already exact" if exact else None,
                reason="another attack is already exact" if exact else reason,
            ),
            title=name.replace("_", " ").capitalize(),
        )
        for name, reason in absent_for_tokens().items()
    ]
