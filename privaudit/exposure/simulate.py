"""Several local steps as the inner loop of a search needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from privaudit.exposure.gradient import GradientExposure
from privaudit.exposure.local_steps import ADAM_EPS, Passes, images_of
from privaudit.exposure.precision import single
from privaudit.tape import Recorder, Tape
from privaudit.tape.recorder import Observer
from privaudit.types import AnyBatch


def simulate(
    exposure: GradientExposure,
    model: nn.Module,
    batch: AnyBatch,
    tape: Tape | None,
    *,
    observer: Observer | None = None,
) -> dict[str, Tensor]:
    """What a guess would send, with its graph through all steps.

    Signs, as AdamW sends them, have no slope: a softer stand-in takes their place.

    Args:
        exposure: How the client trains.
        model: The model.
        batch: The guess, the images of all steps.
        tape: Masks of all steps, which may carry a graph; None: nothing is dropped.
        observer: Sees all calls of all steps.
    """
    tape = tape if exposure.dropout else None
    passes = Passes(
        lambda rest: Recorder(
            model, rest, off=rest is None, precise=exposure.precise, observer=observer
        ),
        tape,
    )
    soft = exposure.local is not None and not exposure.local.sums_gradients
    plain = replace(exposure, local=None) if soft else exposure
    sent = plain.run(model, batch, passes, create_graph=True)
    sent = {n: single(g) for n, g in sent.items()}
    return _softened(sent) if soft else sent


def _softened(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """g / (|g| + mean |g|)."""
    return {
        n: g / (g.abs() + g.detach().abs().mean().clamp_min(ADAM_EPS))
        for n, g in gradients.items()
    }


def blank_tape(exposure: GradientExposure, model: nn.Module, batch: AnyBatch) -> Tape:
    """The draws of all local steps on images like these, without values."""
    local = exposure.local
    parts = [batch] if local is None else local.parts(images_of(batch))
    return Tape.of_steps(exposure.trace(model, p, lambda *_: None)[2] for p in parts)
