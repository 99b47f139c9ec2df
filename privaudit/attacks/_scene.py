"""What the closed forms look at: the model's structure and one observation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit._autograd import partials
from privaudit.attacks._compared import error_of
from privaudit.attacks._inputs import InputMap
from privaudit.exposure import shared_parameters
from privaudit.exposure.simulate import blank_tape
from privaudit.tape import DropSite, Op, Tape, Tracer, same_data
from privaudit.types import Batch, Observation, Target


@dataclass(frozen=True, eq=False)
class Structure:
    """One white-box step of the model with an image of the attacker's own.

    Attributes:
        inputs: From pixels to the first layer.
        affine: True when that map is affine.
        ops: Calls on parameters, in order.
        sites: Dropout calls, in order.
        tape: The draws that a step makes, without values.
        loss: Of the attacker's own image, with its graph.
        logits: Likewise; None where the exposure hides them.
    """

    inputs: InputMap
    affine: bool
    ops: tuple[Op, ...]
    sites: tuple[DropSite, ...]
    tape: Tape
    loss: Tensor
    logits: Tensor | None

    @property
    def first(self) -> Op:
        """The first call on a parameter."""
        return self.ops[0]

    @property
    def classifier(self) -> Op | None:
        """The linear layer whose output is the logits."""
        for op in reversed(self.ops):
            if op.kind == "linear" and self.logits is not None:
                return op if same_data(op.output, self.logits) else None
        return None

    def uses(self, weight: str | None) -> int:
        """How many calls use the parameter ``weight``."""
        return sum(op.weight == weight for op in self.ops)

    def dropped_input(self) -> str | None:
        """The refusal of every form where a mask acts before the first layer."""
        for site in self.sites:
            draw = self.tape.draws[site.draw]
            if draw.active and feeds(site.output, self.first.input):
                return f"dropout ({draw.name}) acts on the input of {self.first.path}"
        return None


def feeds(source: Tensor, result: Tensor) -> bool:
    """True when ``result`` was computed from ``source``."""
    if source is result or same_data(source, result):
        return True
    if not (source.requires_grad and result.requires_grad):
        return False
    (back,) = partials(result.sum(), [source])
    return back is not None


@dataclass(frozen=True, eq=False)
class Scene:
    """One observation with everything that a form needs to judge it."""

    target: Target
    observation: Observation
    structure: Structure
    labels: Tensor | None

    def gradient(self, name: str | None) -> Tensor | None:
        """The observed gradient of a parameter in float64; None when not shared."""
        value = self.observation.gradients.get(name or "")
        return None if value is None else value.detach().double()

    @property
    def clean(self) -> bool:
        """True when the client's step drew nothing that is random."""
        return not self.structure.tape.active

    def recomputed_error(self, images: Tensor, tape: Tape | None) -> float | None:
        """Relative error of the whole recomputed gradient.

        Args:
            images: The guess.
            tape: The client's masks as read off; None with a clean step.

        Returns:
            None when masks or labels are not known, so that nothing can be said.
        """
        if tape is None and not self.clean:
            return None
        if self.labels is None and self.target.exposure.is_classification:
            return None
        batch = Batch(images.float(), self.labels)
        guess = self.target.exposure.gradient(self.target.model, batch, tape=tape)
        return error_of(self.target, guess, self.observation.gradients)


def structure_of(
    target: Target, observation: Observation, generator: torch.Generator
) -> Structure:
    """Look at the model once per audit: clients of one size see the same structure."""
    key = f"{Structure.__name__} of {observation.batch_size}"
    known = target.memory.get(key)
    if isinstance(known, Structure):
        return known
    shared_parameters(target.model)
    size = observation.batch_size
    labels = target.knowledge.labels
    labels = torch.zeros(size, dtype=torch.long) if labels is None else labels
    if target.exposure.is_classification and not labels.is_floating_point():
        labels = labels.clamp_min(0)  # an ignored label (-100) would hide all
    device = next(target.model.parameters()).device
    labels = labels.to(device)
    inputs = InputMap(target, observation.image_shape, labels[:1])
    shape = (size, *observation.image_shape)
    image = torch.rand(shape, generator=generator).to(device)
    tracer = Tracer(target.model)
    batch = Batch(image.requires_grad_(), labels)
    loss, logits, tape = target.exposure.trace(target.model, batch, tracer)
    if target.exposure.local is not None:
        # One pass shows the layers; the draws are those of every step.
        tape = blank_tape(target.exposure, target.model, batch)
    found = Structure(
        inputs,
        inputs.is_affine(generator),
        tuple(tracer.ops),
        tuple(tracer.sites),
        tape,
        loss,
        logits,
    )
    target.memory[key] = found
    return found
