"""Puts another last layer on a copy of a model, and trains it alone."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit.defenses._training import Loop, device_of, endless, trainable_copy
from privaudit.errors import ConfigError
from privaudit.exposure import _outputs
from privaudit.exposure.output import scalar

if TYPE_CHECKING:
    from privaudit.defenses._training import History
    from privaudit.defenses.base import TrainData
    from privaudit.exposure import FeatureExposure

_PROBE_RATE = 1e-3
"""Of AdamW, for the head alone."""
_WEIGHT, _BIAS = "privaudit_head_weight", "privaudit_head_bias"
"""Of a layer behind a model that has none of its own to exchange. They are parameters
of the model and no module: an ``nn.Sequential`` would run that itself."""


def pooled(out: Any) -> Tensor:
    """A model's output as one vector an image, (batch, size).

    Logits or pooled features where it has them, else tokens or maps averaged.

    Raises:
        ConfigError: There is no tensor of floats.
    """
    found = _outputs.tensors(out)
    floats = {n: t for n, t in found.items() if _outputs.is_float(t) and t.dim() > 1}
    if not floats:
        raise ConfigError(
            "output of the model",
            expected="a tensor of floats, (batch, …)",
            got=_outputs.described(out),
            hint="Trained defenses need a model that puts out features or logits.",
        )
    vectors = [t for t in floats.values() if t.dim() == 2]
    value = vectors[0] if vectors else next(iter(floats.values()))
    if value.dim() == 4:
        return value.mean((2, 3))
    return value.flatten(1, -2).mean(1) if value.dim() > 2 else value


def _topped(model: nn.Module, _: Any, out: Any) -> Tensor:
    """A forward hook: the output becomes that of the layer that was added."""
    weight, bias = model.get_parameter(_WEIGHT), model.get_parameter(_BIAS)
    return F.linear(pooled(out), weight, bias)


def put_head(
    model: nn.Module,
    exposure: FeatureExposure,
    images: Tensor,
    size: int,
    *,
    generator: torch.Generator,
) -> list[nn.Parameter]:
    """Make ``model`` put out ``size`` values; in place, with fresh weights.

    The linear layer that makes the output is exchanged. Where there is none, one is
    put behind the pooled output.

    Args:
        model: A copy.
        exposure: How it is run, and where it is cut.
        images: (1, channels, height, width), any.
        size: Of the output.
        generator: Draws the weights.

    Returns:
        Weight and bias of the new layer.

    Raises:
        ConfigError: The server part does not put out ``size`` values thereafter.
    """
    name, inside = _last_layer(model, exposure, images)
    head = _fresh_linear(inside, size, generator).to(device_of(model))
    weight, bias = head.parameters()
    if name:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, head)
    else:
        if not hasattr(model, _WEIGHT):
            model.register_forward_hook(_topped)
        model.register_parameter(_WEIGHT, weight)
        model.register_parameter(_BIAS, bias)
    with torch.no_grad():
        sent = exposure.predict(model, images)
        out = exposure.finish(model, images, sent)
    if tuple(pooled(out).shape) == (1, size):
        return [weight, bias]
    raise ConfigError(
        f"split {exposure.cut.name}",
        expected=f"a server part that can be given {size} outputs",
        got=_outputs.described(out),
        hint="Cut at a module instead of a node of the graph, or give the model a "
        "linear layer that makes its output.",
    )


def _last_layer(
    model: nn.Module, exposure: FeatureExposure, images: Tensor
) -> tuple[str, int]:
    """Name and inputs of the linear layer that makes the output; "" if there is none.

    Then the inputs are the size of the pooled output.
    """
    made: list[tuple[str, nn.Linear, Tensor]] = []
    with ExitStack() as stack, torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):

                def note(m: nn.Linear, _: Any, out: Tensor, name: str = name) -> None:
                    made.append((name, m, out))

                stack.callback(module.register_forward_hook(note).remove)
        whole = exposure.whole(model, images)
    output = pooled(whole)
    if hasattr(model, _WEIGHT):
        return "", model.get_parameter(_WEIGHT).shape[1]
    for name, layer, out in made:
        if out is output and name:
            return name, layer.in_features
    return "", output.shape[1]


def _fresh_linear(inside: int, size: int, generator: torch.Generator) -> nn.Linear:
    with torch.device("meta"):
        head = nn.Linear(inside, size)
    head = head.to_empty(device="cpu")
    with torch.no_grad():
        head.weight.normal_(std=1 / math.sqrt(inside), generator=generator)
        head.bias.zero_()
    return head


def with_task_head(
    model: nn.Module,
    data: TrainData,
    exposure: FeatureExposure,
    *,
    defense: str,
    steps: int,
    generator: torch.Generator,
) -> tuple[nn.Module, History]:
    """A trainable copy that has an output for each class of the task.

    Where the model's own output has another size, a fresh head is trained alone
    before anything else. Source: Lei 2025, appendix D.2.

    Args:
        model: The user's; not changed.
        data: Its ``classes`` say how many; None: as the model has.
        exposure: How the model is run.
        defense: For whom, for messages.
        steps: Of the head alone.
        generator: Draws the head.
    """
    twin = trainable_copy(model)
    if data.classes is None:
        return twin, {}
    batches = endless(data, device_of(twin))
    image = next(batches)[0][:1]
    with torch.no_grad():
        size = pooled(exposure.whole(twin, image)).shape[1]
    if size == data.classes:
        return twin, {}
    head = put_head(twin, exposure, image, data.classes, generator=generator)
    wants = {p: p.requires_grad for p in twin.parameters()}
    twin.requires_grad_(False)
    for parameter in head:
        parameter.requires_grad_(True)
    optimiser = torch.optim.AdamW(head, lr=_PROBE_RATE)

    def losses(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = exposure.whole(twin, images)
        return {"total": scalar(data.loss(out, labels), "train_data.loss")}

    loop = Loop(defense, steps, [optimiser], prefix="head alone: ")
    history = loop.run(batches, losses)
    for parameter, wanted in wants.items():
        parameter.requires_grad_(wanted)
    return twin, history
