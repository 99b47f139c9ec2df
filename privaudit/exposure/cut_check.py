"""Does everything go through the cut? Are its features what they seem?

What a server gets is the features and nothing else, so the model must give the same
output when they are put into a forward pass on quite another input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._guard import kept_world
from privaudit.errors import ConfigError, PrivauditError, UnsupportedModelError
from privaudit.exposure import _outputs
from privaudit.exposure._graph_reach import last_reached
from privaudit.exposure.cut import cut_conditions
from privaudit.exposure.cut_resolve import AnyCut, require_float, run_once
from privaudit.exposure.diagnose import innermost_module
from privaudit.inventory.records import Finding

Run = Callable[[Tensor], Any]
"""Runs the whole model on what it takes."""
TOLERANCE = 1e-6
"""Relative to the largest value; the same operations on the same values agree."""
_STEP = 1e-3
"""Of the range of the images, for central differences in float32."""
_SHARE_TOLERANCE = 0.05
"""41 architectures stay within .01 of 1."""


@dataclass(frozen=True)
class CutCheck:
    """What was found out about a cut.

    Attributes:
        complete: True where ``server(client(x))`` equals the model's output.
        error: Largest relative difference between the two.
        findings: In plain words.
    """

    complete: bool
    error: float
    findings: tuple[Finding, ...] = ()


def check_cut(model: nn.Module, cut: AnyCut, run: Run, inputs: Tensor) -> CutCheck:
    """Examine a cut on a few inputs; the model stays as it is.

    Args:
        model: The whole model.
        cut: Where it is cut.
        run: Calls the model.
        inputs: (batch, …) floats, as the model takes them.

    Raises:
        ConfigError: Integers; a batch that is not the first axis of the features.
        UnsupportedModelError: It runs, but not where a gradient is wanted.
    """
    require_float(inputs)
    with kept_world():
        sent = _sent(model, cut, run, inputs)
        require_batch_first(cut.name, sent, len(inputs))
        again = _sent(model, cut, run, inputs)
        random = _difference(sent, again) > TOLERANCE
        error, beside = (0.0, []) if random else _beside(model, cut, run, inputs, sent)
        findings = [
            *_about_choice(cut),
            *(_about_randomness(cut) if random else ()),
            *_about_beside(cut, beside, error),
            *_about_graph(model, cut, run, inputs),
            *(() if random else _about_rows(model, cut, run, inputs, sent)),
            *(() if random else _about_gradient(model, cut, run, inputs)),
        ]
    return CutCheck(not random and not beside, error, tuple(findings))


def is_complete(
    model: nn.Module, cut: AnyCut, run: Run, inputs: Tensor, whole: Any = None
) -> bool:
    """Whether all that the output depends on goes through the cut.

    Args:
        model: The whole model.
        cut: Where it is cut.
        run: Calls the model.
        inputs: (batch, …) floats.
        whole: The output for ``inputs``, where it is known already.
    """
    with kept_world():
        sent = _sent(model, cut, run, inputs)
        return not _beside(model, cut, run, inputs, sent, whole=whole)[1]


def _sent(model: nn.Module, cut: AnyCut, run: Run, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return cut.capture(model, lambda: run(inputs.clone()))


def other_input(inputs: Tensor) -> Tensor:
    """Another input of the same shape, not random: mirrored, dimmed and shifted."""
    return 0.5 * inputs.flip(*range(1, inputs.dim())) + 0.1


def _beside(
    model: nn.Module,
    cut: AnyCut,
    run: Run,
    inputs: Tensor,
    sent: Tensor,
    *,
    whole: Any = None,
) -> tuple[float, list[str]]:
    """The largest difference, and the outputs that do not come from the features."""
    if whole is None:
        whole = run_once(model, lambda: run(inputs.clone()))
    other = other_input(inputs)
    with torch.no_grad():
        server = cut.finish(model, lambda: run(other.clone()), sent)
    wanted, got = _outputs.tensors(whole), _outputs.tensors(server)
    errors = {n: _difference(wanted[n], got[n]) for n in wanted if n in got}
    worst = max(errors.values(), default=0.0)
    return worst, [n for n, error in errors.items() if error > TOLERANCE]


def _difference(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the largest value; infinite for other shapes."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel() or torch.equal(a, b):
        return 0.0
    a, b = a.double(), b.double()
    gap = float((a - b).abs().max()) / max(float(a.abs().max()), 1e-30)
    return gap if gap == gap else float("inf")


def require_batch_first(name: str, sent: Tensor, count: int) -> None:
    """Refuse features that are not one row an image.

    Raises:
        ConfigError: The first axis has another length than the batch.
    """
    if sent.dim() == 0 or sent.shape[0] != count:
        raise ConfigError(
            f"split {name}",
            expected=f"features whose first axis is the {count} image(s)",
            got=f"shape {tuple(sent.shape)}",
            hint="Windows or parts of images are counted here: cut at the block around "
            "it.",
        )


def _about_choice(cut: AnyCut) -> Iterator[Finding]:
    if cut.chosen:
        yield Finding(
            code="split-element",
            severity="info",
            where=cut.name,
            title="One element of several is sent",
            text=f"The output of `{cut.name}` is a collection; what is attacked is "
            f"{cut.chosen}.",
            remedy="Split(name, select=...) chooses another one.",
        )


def _about_randomness(cut: AnyCut) -> Iterator[Finding]:
    yield Finding(
        code="split-random",
        severity="warning",
        where=cut.name,
        title="The features are random",
        text=f"Two passes of one input differ at `{cut.name}`: something before it "
        "draws at random, such as dropout in train mode. That server(client(x)) "
        "equals the model could not be checked.",
        remedy="Call model.eval() if the device runs it so.",
    )


def _about_beside(cut: AnyCut, beside: list[str], error: float) -> Iterator[Finding]:
    if beside:
        yield Finding(
            code="split-incomplete",
            severity="warning",
            where=cut.name,
            title="Values pass beside the cut",
            text=f"The server cannot finish from the output of `{cut.name}` alone: "
            f"{', '.join(beside[:3])} changes by {error:.1g} (relative) when only the "
            "input behind the device changes. A real device has to send more than "
            "these features, so the leak at this cut is understated.",
            remedy="Cut at a block as a whole, not inside a residual branch.",
        )


def _about_graph(
    model: nn.Module, cut: AnyCut, run: Run, inputs: Tensor
) -> Iterator[Finding]:
    """An attack by gradients needs a path from the features back to the pixels."""
    with torch.enable_grad(), cut_conditions(model):
        leaf = inputs.detach().clone().requires_grad_(True)
        if _reaches(_with_graph(model, cut, run, leaf), leaf):
            return
        behind = last_reached(model, lambda: run(leaf.clone()), leaf)
    after = f" after `{behind}`" if behind else ", before any module"
    yield Finding(
        code="split-detached",
        severity="critical",
        where=cut.name,
        title="No gradient passes from the features to the image",
        text=f"The graph from the image to `{cut.name}` is cut{after} (detach, "
        "no_grad, .data, .numpy or argmax). Attacks by gradients cannot pass this "
        "point; that is no defence, since other attacks can.",
        remedy="Cut before that place, or audit a copy of the model without it.",
    )


def _with_graph(model: nn.Module, cut: AnyCut, run: Run, leaf: Tensor) -> Tensor:
    """The features of ``leaf``, which wants a gradient."""
    try:
        return cut.capture(model, lambda: run(leaf.clone()))
    except PrivauditError:
        raise
    except Exception as error:
        tensors = [*model.named_parameters(), *model.named_buffers()]
        frozen = [name for name, tensor in tensors if tensor.is_inference()]
        raise UnsupportedModelError(
            innermost_module(error, model),
            expected="a forward pass that a gradient can follow",
            got=str(error).strip().split("\n")[0].rstrip("."),
            hint=f"Made in inference mode: {', '.join(frozen[:3])}. Load the weights "
            "outside of torch.inference_mode()."
            if frozen
            else "It runs without gradients: mend the named module for a copy that is "
            "audited.",
        ) from error


def _reaches(sent: Tensor, leaf: Tensor) -> bool:
    if not sent.requires_grad:
        return False
    found = torch.autograd.grad(sent.sum(), leaf, allow_unused=True, retain_graph=True)[
        0
    ]
    return found is not None


def _about_gradient(
    model: nn.Module, cut: AnyCut, run: Run, inputs: Tensor
) -> Iterator[Finding]:
    """Where one of several paths is detached, the gradient tells only of the others."""
    share = gradient_share(model, cut, run, inputs)
    if share is not None and abs(share - 1) > _SHARE_TOLERANCE:
        yield Finding(
            code="split-gradient-differs",
            severity="warning",
            where=cut.name,
            title="The gradient does not tell how the features move",
            text=f"A small change of the image moves the features at `{cut.name}` "
            f"otherwise than their gradient says ({share:.2f} of it). A path may be "
            "detached, a value rounded, or a derivative wrong: attacks by gradients "
            "are weaker here than a real one might be.",
            remedy="Audit a copy of the model without that step.",
        )


def gradient_share(
    model: nn.Module, cut: AnyCut, run: Run, inputs: Tensor
) -> float | None:
    """What the gradient explains of how the features move along one direction.

    1 where it is right. With Δ the central difference along d, this is
    ⟨∂⟨h, Δ⟩/∂x, d⟩ / ‖Δ‖². None where there is no gradient or nothing moves.
    """
    generator = torch.Generator().manual_seed(0)
    way = torch.randn(inputs.shape, generator=generator).sign().to(inputs)
    step = _STEP * float(inputs.max() - inputs.min())
    ahead = _sent(model, cut, run, inputs + step * way)
    moved = ahead - _sent(model, cut, run, inputs - step * way)
    with torch.enable_grad():
        leaf = inputs.detach().clone().requires_grad_(True)
        sent = cut.capture(model, lambda: run(leaf.clone()))
        if not _reaches(sent, leaf):
            return None
        told = torch.autograd.grad((sent * moved).sum(), leaf)[0]
    size = float(moved.double().square().sum())
    return 2 * step * float((told * way).double().sum()) / size if size > 0 else None


def _about_rows(
    model: nn.Module, cut: AnyCut, run: Run, inputs: Tensor, sent: Tensor
) -> Iterator[Finding]:
    """One image's features must not depend on the next one's."""
    if len(inputs) < 2:
        return
    mixed = torch.cat([inputs[:1], other_input(inputs[1:])])
    if _difference(sent[:1], _sent(model, cut, run, mixed)[:1]) > 1e-4:
        yield Finding(
            code="split-mixes-images",
            severity="warning",
            where=cut.name,
            title="Images of a batch influence each other",
            text=f"The first image's features at `{cut.name}` change when only the "
            "others change, as with batch statistics in train mode. Attacks that "
            "take images one by one do not apply as they are.",
            remedy="Call model.eval() if the device runs it so.",
        )
