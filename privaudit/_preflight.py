"""Checks of the audit itself, before any attack: would it see a leak at all?"""

from __future__ import annotations

import torch
from torch import nn

from privaudit._runner import Client
from privaudit.exposure import GradientExposure, relative_error
from privaudit.exposure.diagnose import innermost_module
from privaudit.inventory import Finding
from privaudit.inventory.findings import no_second_derivative, truth_does_not_fit
from privaudit.result import Preflight
from privaudit.types import Batch

REPLAY_TOLERANCE = 1e-5
TRUTH_TOLERANCE = 1e-3
"""Above rounding in deep float32 networks, below anything a mask could change."""


def preflight(
    model: nn.Module, exposure: GradientExposure, client: Client
) -> tuple[Preflight, list[Finding]]:
    """Replay equality, loss at the truth, and a second derivative, on one client."""
    notes: list[str] = []
    replay = _replay_error(model, exposure, client)
    if replay is not None and replay > REPLAY_TOLERANCE:
        notes.append(
            "the recorded step cannot be replayed exactly: see the findings on "
            "randomness"
        )
    batch, step = client.batch, client.step
    truth = relative_error(
        exposure.gradient(model, batch, tape=step.tape), step.observation.gradients
    )
    second, found = _second_derivative(model, exposure, client)
    if truth > TRUTH_TOLERANCE:
        notes.append(f"the gradient at the truth is off by {truth:.1e} (relative)")
        found.append(truth_does_not_fit(truth))
    return (
        Preflight(
            replay_error=replay,
            loss_at_truth=truth,
            double_backward=second,
            notes=notes,
        ),
        found,
    )


def _replay_error(
    model: nn.Module, exposure: GradientExposure, client: Client
) -> float | None:
    """Largest difference of the logits, relative to their size."""
    recorded = client.step.logits
    again = exposure.replay(model, client.batch, client.step.tape)
    if recorded is None or again is None:
        return None
    scale = recorded.abs().max().clamp_min(1.0)
    return float((again - recorded).abs().max() / scale)


def _second_derivative(
    model: nn.Module, exposure: GradientExposure, client: Client
) -> tuple[str, list[Finding]]:
    """One gradient of the gradient with respect to one image."""
    observed = client.step.observation.gradients
    live = [n for n, g in observed.items() if bool(g.any())]
    if not live:
        return "not probed: the gradient is zero", []
    images = client.batch.images.detach().clone().requires_grad_()
    try:
        gradient = exposure.gradient(
            model,
            Batch(images, client.batch.labels),
            tape=client.step.tape,
            names=frozenset(live[:1]),
            create_graph=True,
        )[live[0]]
        torch.autograd.grad((gradient * gradient.detach()).sum(), images)
    except (RuntimeError, NotImplementedError) as error:
        cause = str(error).splitlines()[0]
        return cause, [no_second_derivative(innermost_module(error, model), cause)]
    return "ok", []
