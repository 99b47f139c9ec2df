"""Take the inventory: from recorded steps, not from a look at module names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from privaudit.exposure import ClientStep, changes, shared_parameters
from privaudit.inventory import findings
from privaudit.inventory.records import Finding, Inventory, StochasticCall
from privaudit.tape import Tape


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the inventory rests on.

    Attributes:
        step: One recorded step of a client.
        in_eval: What a forward pass in eval mode drew; None where none was made.
        outside: Modules that drew from a generator outside torch.
        notes: Findings made before, such as about wrappers.
    """

    step: ClientStep
    in_eval: Tape | None
    outside: Sequence[str]
    notes: Sequence[Finding] = ()


def take(model: nn.Module, evidence: Evidence) -> Inventory:
    """Write down everything random, everything shared, and what it means."""
    shared = shared_parameters(model)
    calls = _calls(evidence)
    gradients = evidence.step.observation.gradients
    total = sum(p.numel() for p in model.parameters())
    trainable = sum(p.numel() for p in shared.values())
    found = [
        *evidence.notes,
        *findings.about_randomness(calls),
        *findings.about_recurrent(_idle_dropout(model)),
        *findings.about_eval_mode(examined=evidence.in_eval is not None),
        *findings.about_outside(evidence.outside),
        *findings.about_sharing(total, trainable),
        *findings.about_unused(sorted(set(shared) - set(gradients))),
        *findings.about_zero_gradients(gradients, shared),
    ]
    return Inventory(
        model=type(model).__name__,
        input_shape=list(evidence.step.observation.image_shape),
        parameters=total,
        trainable=trainable,
        shared=list(gradients),
        stochastic=calls,
        census=True,
        findings=found,
        changes=changes(model),
    )


def _idle_dropout(model: nn.Module) -> dict[str, float]:
    """Recurrent layers whose dropout has nothing to act between."""
    return {
        name or type(module).__name__: module.dropout
        for name, module in model.named_modules()
        if isinstance(module, nn.RNNBase) and module.dropout and module.num_layers == 1
    }


def _calls(evidence: Evidence) -> list[StochasticCall]:
    """The step's draws in call order, then those that only eval mode makes."""
    drawn = evidence.step.tape.first_step.draws
    in_eval = [] if evidence.in_eval is None else list(evidence.in_eval.active)
    still_on = {(d.path, d.kind, d.p) for d in in_eval}
    calls = [
        d.record(in_eval=d.active and (d.path, d.kind, d.p) in still_on) for d in drawn
    ]
    # Several calls of one module: as many stay on as eval mode made.
    known = {(d.path, d.kind, d.p) for d in drawn}
    extra = [d for d in in_eval if (d.path, d.kind, d.p) not in known]
    return calls + [d.record(in_eval=True) for d in extra]
