"""Checks of the audit itself, before any attack: would it see a leak at all?"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._autograd import partials
from privaudit._runner import Client
from privaudit.exposure import GradientExposure, relative_error
from privaudit.exposure.diagnose import innermost_module
from privaudit.inventory import Finding
from privaudit.inventory.findings import (
    no_second_derivative,
    truth_does_not_fit,
    wrong_second_derivative,
)
from privaudit.result import Preflight
from privaudit.tape import Tape
from privaudit.types import Batch
from privaudit.verdict import TRUTH_TOLERANCE, above_noise

REPLAY_TOLERANCE = 1e-5
DERIVATIVE_TOLERANCE = 1e-3


def preflight(
    model: nn.Module, exposure: GradientExposure, client: Client
) -> tuple[Preflight, list[Finding]]:
    """Replay equality, loss at the truth, and a second derivative, on one client."""
    notes: list[str] = []
    if not client.masks_known:
        second, found = _second_derivative(model, exposure, client)
        notes.append("the client's masks are not known: nothing could be replayed")
        return (
            Preflight(
                replay_error=None,
                loss_at_truth=None,
                noise_floor=client.noise_floor or None,
                double_backward=second,
                notes=notes,
            ),
            found,
        )
    replay = _replay_error(model, exposure, client)
    if replay is not None and replay > REPLAY_TOLERANCE:
        notes.append(
            "the recorded step cannot be replayed exactly: see the findings on "
            "randomness"
        )
    batch, step = client.batch, client.step
    truth = relative_error(
        exposure.gradient(model, batch, tape=step.tape), step.clean.gradients
    )
    second, found = _second_derivative(model, exposure, client)
    if truth > above_noise(TRUTH_TOLERANCE, client.noise_floor):
        notes.append(f"the gradient at the truth is off by {truth:.1e} (relative)")
        found.append(truth_does_not_fit(truth))
    return (
        Preflight(
            replay_error=replay,
            loss_at_truth=truth,
            noise_floor=client.noise_floor or None,
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
    observed = client.step.clean.gradients
    live = [n for n, g in observed.items() if bool(g.any())]
    if not live:
        return "not probed: the gradient is zero", []
    images = client.batch.images.detach().clone().requires_grad_()
    try:
        gradient = exposure.gradient(
            model,
            Batch(images, client.batch.labels),
            tape=client.step.tape,
            names=frozenset(live),
            create_graph=True,
        )
        # All of it: one parameter's gradient need not pass every operator.
        parts = [(g * g.detach()).sum() for g in gradient.values()]
        product = torch.stack(parts).sum()
        custom = custom_functions(product)
        torch.autograd.grad(product, images)
    except (RuntimeError, NotImplementedError) as error:
        cause = str(error).splitlines()[0]
        return cause, [no_second_derivative(innermost_module(error, model), cause)]
    return _custom_verdict(model, exposure, client, custom) if custom else ("ok", [])


def custom_functions(tensor: Tensor) -> list[str]:
    """Names of the user's own autograd functions in the graph of ``tensor``."""
    seen: set[Any] = set()
    stack: list[Any] = [tensor.grad_fn]
    names: dict[str, None] = {}
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            names.setdefault(type(node).__name__.removesuffix("Backward"))
        elif type(node).__name__ == "Error":
            # What torch leaves where a once_differentiable function cuts the graph.
            names.setdefault("a once_differentiable function")
        stack += [parent for parent, _ in node.next_functions]
    return list(names)


def _custom_verdict(
    model: nn.Module,
    exposure: GradientExposure,
    client: Client,
    custom: list[str],
) -> tuple[str, list[Finding]]:
    """Hand-written derivatives may be wrong without a word: compare differences."""
    apart = derivative_mismatch(model, exposure, client)
    if apart <= DERIVATIVE_TOLERANCE:
        return "ok", []
    listed = ", ".join(custom)
    return (
        f"second derivative of {listed} is wrong or missing (off by {apart:.1e})",
        [wrong_second_derivative(listed, apart)],
    )


def derivative_mismatch(
    model: nn.Module, exposure: GradientExposure, client: Client
) -> float:
    """Relative gap between the attack gradient and a finite difference of gradients.

    Along one random direction, in float64 on a copy where the model allows it.
    """
    model, batch, tape, step = _precise(model, client)
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(batch.images.shape, generator=generator).to(batch.images)
    precise = exposure.precise
    fixed = exposure.gradient(model, batch, tape=tape, precise=precise)
    live = [n for n, g in fixed.items() if bool(g.any())]

    def product(images: Tensor, *, graph: bool = False) -> Tensor:
        moved = exposure.gradient(
            model, Batch(images, batch.labels), tape=tape, names=frozenset(live),
            create_graph=graph, precise=precise,
        )  # fmt: skip
        return torch.stack([(moved[n] * fixed[n]).sum() for n in live]).sum()

    images = batch.images.detach().clone().requires_grad_()
    (slope,) = partials(product(images, graph=True), [images])
    exact = 0.0 if slope is None else float((slope * along).sum())
    after, before = (
        product(batch.images + step * along),
        product(batch.images - step * along),
    )
    measured = float(after - before) / (2 * step)
    return abs(exact - measured) / max(abs(measured), abs(exact), 1e-12)


def _precise(model: nn.Module, client: Client) -> tuple[nn.Module, Batch, Tape, float]:
    """Model, batch and tape in float64, with the step that suits the precision."""
    batch, tape = client.batch, client.step.tape
    try:
        twin = copy.deepcopy(model).double()
    except (RuntimeError, TypeError, copy.Error):
        return model, batch, tape, 1e-2
    labels = batch.labels
    if labels is not None and labels.is_floating_point():
        labels = labels.double()
    values = [
        v.double() if v is not None and v.is_floating_point() else v
        for v in (d.value for d in tape)
    ]
    return twin, Batch(batch.images.double(), labels), tape.with_values(values), 1e-4
