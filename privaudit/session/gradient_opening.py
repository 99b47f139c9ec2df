"""Opens an audit of training steps: sample read, first step made, inventory taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from privaudit import _labels
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation, check_bands, to_range
from privaudit._precision import examine
from privaudit._runner import Client
from privaudit._sample import Sample, read_sample
from privaudit._session import Session, batch_of
from privaudit._shape import expected_channels, stated_input_shape
from privaudit.config import AuditConfig
from privaudit.exposure import GradientExposure, local_steps, shared_parameters
from privaudit.exposure.client_step import defended
from privaudit.exposure.output import input_keyword
from privaudit.inventory import Finding
from privaudit.inventory.outside import OutsideWatch
from privaudit.inventory.take import Evidence, take
from privaudit.session.stances import UNDEFENDED, Defended
from privaudit.tape import Tape
from privaudit.types import Batch

Callables = tuple[Callable[..., Tensor] | None, Callable[..., Tensor] | None]


def open_session(
    model: nn.Module,
    given: Any,
    *,
    config: AuditConfig,
    normalisation: Normalisation,
    notes: Sequence[Finding],
    callables: Callables,
    started: float,
    defended_by: Defended = UNDEFENDED,
) -> Session:
    """Read the sample, make the first client's step, take the inventory."""
    loss, training_step = callables
    shared_parameters(model)
    if given is None:
        shipped = shipped_images(1, stated_input_shape(model))
        given = to_range(shipped, config.value_range)
    sample, normalisation = read_sample(
        given,
        normalisation,
        channels=expected_channels(model),
        value_range=config.value_range,
    )
    check_bands(config.shown_bands, sample.images.shape[1])
    client = config.client
    exposure = GradientExposure(
        normalisation,
        loss,
        training_step,
        client.mode,
        sample.keyword or input_keyword(model),
        autocast=client.autocast,
        local=local_steps(
            client.local_steps, client.lr, client.optimizer, client.momentum
        ),
    )
    output, eval_tape = _eval_pass(model, exposure, sample)
    labels = _labels.settle(model, exposure, sample, output)
    if exposure.is_classification:
        _labels.require_readable(labels, config.knowledge.labels)
    size = client.images_of(len(sample.images))
    batch = batch_of(model, sample, labels, 0, size)
    before = time.monotonic()
    with OutsideWatch(model) as watch:
        first = _client(model, exposure, batch, 0, seed=config.seed)
    seconds = time.monotonic() - before
    precision = examine(model, exposure, first)
    first = replace(first, noise_floor=precision.noise_floor or 0.0)
    notes = [*notes, *precision.findings]
    evidence = Evidence(first.step, eval_tape, watch.found, notes)
    inventory = take(model, evidence)
    step = defended(
        first.step, defended_by.defenses, exposure=exposure, model=model, batch=batch,
        seed=config.seed,
    )  # fmt: skip
    return Session(
        model, precision.exposure, sample, labels, config, replace(first, step=step),
        seconds, inventory, started, precision, defended_by,
    )  # fmt: skip


def _client(
    model: nn.Module, exposure: GradientExposure, batch: Batch, start: int, *, seed: int
) -> Client:
    step = exposure.observe(model, batch, seed=seed)
    return Client(batch, step, range(start, start + len(batch)))


def _eval_pass(
    model: nn.Module, exposure: GradientExposure, sample: Sample
) -> tuple[Any, Tape | None]:
    """One forward pass in eval mode on the first images; None where it fails.

    A model that only runs inside its training step has no such pass; the inventory
    then says that eval mode was not examined.
    """
    device = next(model.parameters(), torch.empty(0)).device
    images = sample.images[: _labels.AT_ONCE].to(device)
    if exposure.training_step is None:
        return exposure.census(model, Batch(images, None), train=False)
    try:
        return exposure.census(model, Batch(images[:1], None), train=False)
    except Exception:  # noqa: BLE001 - any way to fail means: no such pass
        return None, None
