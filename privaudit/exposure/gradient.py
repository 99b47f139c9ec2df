"""The gradient exposure: a server sees what one client's training step shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._autograd import partials
from privaudit._guard import kept_buffers
from privaudit._pixels import Normalisation
from privaudit.errors import UnsupportedModelError
from privaudit.exposure import output
from privaudit.exposure.client_step import ClientStep as ClientStep
from privaudit.exposure.conditions import audit_conditions
from privaudit.exposure.diagnose import explain_step_failure
from privaudit.exposure.local_steps import LocalSteps, Passes, images_of
from privaudit.exposure.parameters import (
    hidden_gradient,
    require_finite,
    shared_parameters,
    stamp,
)
from privaudit.exposure.precision import autocast, scaled_partials, single, typed
from privaudit.tape import Recorder, Tape
from privaudit.tape.recorder import AnyCall, LinearCall, Observer
from privaudit.types import AnyBatch, Autocast, Mode, Observation

Loss = Callable[[Any, Tensor], Tensor]
TrainingStep = Callable[[nn.Module, Any, Tensor | None], Tensor]


@dataclass(frozen=True, eq=False)
class GradientExposure:
    """Makes the client's gradient, and recomputes it for any guess.

    Attributes:
        normalisation: From [0, 1] pixels to what the model takes.
        loss: (output, labels) → scalar; None is cross-entropy on the logits.
        training_step: (model, inputs, labels) → scalar; replaces forward and loss.
        mode: ``train`` puts every module into train mode for the step.
        keyword: Name of the input for models that take it by keyword only.
        dropout: False switches all masks and noise off: the undefended model.
        autocast: ``bfloat16`` or ``float16``: forward pass and loss run under it.
        precise: True lets the attacker's own passes run without autocast, whoever
            switched it on; False where the model cannot do without.
        local: What the client does beyond one step of SGD; None: nothing.
    """

    normalisation: Normalisation
    loss: Loss | None = None
    training_step: TrainingStep | None = None
    mode: Mode = "train"
    keyword: str | None = None
    dropout: bool = True
    autocast: Autocast | None = None
    precise: bool = True
    local: LocalSteps | None = None

    @property
    def is_classification(self) -> bool:
        """True for the default loss, where labels are class ids."""
        return self.loss is None and self.training_step is None

    def observe(self, model: nn.Module, batch: AnyBatch, *, seed: int) -> ClientStep:
        """Make the client's step on ``batch`` and record everything it draws.

        Several local steps take its images one part after the other. The draws are
        from torch's global generator, as in training; that is seeded inside a fork
        and put back.

        Args:
            model: The client's model.
            batch: What the client holds.
            seed: Of the draws.

        Raises:
            UnsupportedModelError: The step fails, or its gradient is not finite.
        """
        passes = Passes(lambda _: Recorder(model, off=not self.dropout))
        try:
            with _seeded(model, seed):
                gradients = self.run(model, batch, passes)
        except RuntimeError as error:
            raise explain_step_failure(
                error, model, self._plain(model, batch)
            ) from error
        except Exception as error:
            raise explain_step_failure(error, model, None) from error
        require_finite(gradients)
        sent = {n: single(g) for n, g in gradients.items()}
        observation = Observation(sent, len(batch), batch.shape)
        loss, logits = passes.seen[0]
        cast = passes.made[0].autocast
        return ClientStep(observation, passes.tape, logits, float(loss), cast)

    def gradient(
        self,
        model: nn.Module,
        batch: AnyBatch,
        *,
        tape: Tape | None = None,
        names: frozenset[str] | None = None,
        create_graph: bool = False,
        precise: bool = False,
    ) -> dict[str, Tensor]:
        """What a guess would send, under given masks or, without, with none dropped.

        Args:
            model: The model.
            batch: The guess.
            tape: Masks to put in place; None: nothing is dropped.
            names: Only these parameters; None: all shared ones.
            create_graph: True keeps the graph for a second derivative.
            precise: True without the client's autocast.
        """
        tape = tape if self.dropout else None
        passes = Passes(
            lambda rest: Recorder(model, rest, off=rest is None, precise=precise), tape
        )
        return self.run(model, batch, passes, names=names, create_graph=create_graph)

    def run(
        self,
        model: nn.Module,
        batch: AnyBatch,
        passes: Passes,
        *,
        names: frozenset[str] | None = None,
        create_graph: bool = False,
    ) -> dict[str, Tensor]:
        """What is sent of ``batch``: one step's gradient, or what several moved.

        Args:
            model: The model.
            batch: The images of all steps.
            passes: Recorders of the forward passes.
            names: Only these parameters; None: all shared ones.
            create_graph: True keeps the graph for a second derivative.
        """
        wanted = names if self.local is None else None

        def step(part: AnyBatch) -> dict[str, Tensor]:
            loss, logits = self._loss(model, part, passes.next())
            passes.see(loss, logits)
            return self._gradients(model, loss, names=wanted, create_graph=create_graph)

        with self._ready(model):
            if self.local is None:
                return step(batch)
            shared = shared_parameters(model)
            sent = self.local.moved(
                model, shared, images_of(batch), step, create_graph=create_graph
            )
        return {n: g for n, g in sent.items() if names is None or n in names}

    def trace(
        self,
        model: nn.Module,
        batch: AnyBatch,
        observer: Observer,
        *,
        tape: Tape | None = None,
    ) -> tuple[Tensor, Tensor | None, Tape]:
        """One step with every call shown to ``observer``.

        Args:
            model: The model.
            batch: The guess.
            observer: Sees every call.
            tape: Masks to put in place; None: nothing is dropped.

        Returns:
            The loss and the logits (None where hidden), both with their graph, and
            the draws that the step would make, without values.
        """
        recorder = Recorder(
            model,
            tape,
            off=tape is None,
            observer=observer,
            precise=self.precise,
        )
        with self._ready(model):
            loss, logits = self._loss(model, batch, recorder)
        tape = recorder.tape
        return loss, logits, tape if self.dropout else tape.inactive()

    def loss_of(
        self,
        model: nn.Module,
        batch: AnyBatch,
        tape: Tape | None,
        *,
        linear: LinearCall | None = None,
        calls: AnyCall | None = None,
        observer: Observer | None = None,
    ) -> Tensor:
        """The training loss of a guess, with its graph.

        Args:
            model: The model.
            batch: The guess.
            tape: Masks to put in place; None: nothing is dropped.
            linear: Runs the calls of linear layers instead of torch.
            calls: Runs any call that is not random, where it wants to.
            observer: Sees all other calls.
        """
        tape = tape if self.dropout else None
        recorder = Recorder(
            model,
            tape,
            off=tape is None,
            observer=observer,
            linear=linear,
            calls=calls,
            precise=self.precise,
        )
        with self._ready(model):
            loss, _ = self._loss(model, batch, recorder)
        return loss

    def replay(self, model: nn.Module, batch: AnyBatch, tape: Tape) -> Tensor | None:
        """The logits of ``batch`` under recorded masks; of the first step's images."""
        if self.local is not None:
            batch = self.local.parts(images_of(batch))[0]
        with self._ready(model), torch.no_grad():
            _, logits = self._loss(model, batch, Recorder(model, tape))
        return logits

    def census(
        self,
        model: nn.Module,
        batch: AnyBatch,
        *,
        train: bool,
        observer: Observer | None = None,
    ) -> tuple[Any, Tape]:
        """Run the model once as it is, and record everything random."""
        recorder = Recorder(model, observer=observer)

        def run() -> Any:
            inputs = typed(model, batch.inputs(self.normalisation))
            with autocast(model, self.autocast):
                return output.call(model, inputs, self.keyword)

        with self._ready(model, train=train), torch.no_grad():
            try:
                with recorder:
                    result = run()
            except Exception as error:
                if self.training_step is not None:
                    raise
                raise explain_step_failure(error, model, run) from error
        return recorder.latest(result), recorder.tape

    def logits(self, model: nn.Module, result: Any) -> Tensor:
        """The logits in a model's output."""
        return output.logits(result, type(model).__name__)

    @contextmanager
    def _ready(self, model: nn.Module, *, train: bool = True) -> Iterator[None]:
        """Modes as in the client's step, buffers kept, second derivatives possible."""
        modes = [(m, m.training) for m in model.modules()]
        try:
            if not train:
                model.eval()
            elif self.mode == "train" and self.training_step is None:
                model.train()
            with kept_buffers(model), audit_conditions(model), torch.enable_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training

    def _loss(
        self, model: nn.Module, batch: AnyBatch, recorder: Recorder
    ) -> tuple[Tensor, Tensor | None]:
        inputs = typed(model, batch.inputs(self.normalisation))
        cast = autocast(model, self.autocast)
        if self.training_step is not None:
            with recorder, cast:
                loss = self.training_step(model, inputs, batch.labels)
            return output.scalar(recorder.latest(loss), "training_step"), None
        with recorder, cast:
            result = output.call(model, inputs, self.keyword)
            if self.loss is not None:
                loss = self.loss(result, _labels(batch))
                return output.scalar(recorder.latest(loss), "loss"), None
        logits = single(self.logits(model, recorder.latest(result)))
        labels = _labels(batch)
        soft = labels.is_floating_point()
        return F.cross_entropy(logits, labels.to(logits) if soft else labels), logits

    def _gradients(
        self,
        model: nn.Module,
        loss: Tensor,
        *,
        names: frozenset[str] | None = None,
        create_graph: bool = False,
    ) -> dict[str, Tensor]:
        shared = shared_parameters(model)
        wanted = {n: p for n, p in shared.items() if names is None or n in names}
        before = {n: stamp(p) for n, p in wanted.items()}
        if self.autocast == "float16" and not create_graph:
            values = scaled_partials(loss, list(wanted.values()))
        else:
            values = partials(
                loss, list(wanted.values()), create_graph=create_graph, keep=False
            )
        found = list(zip(wanted, values, strict=True))
        for name, value in found:
            if value is None and stamp(wanted[name]) != before[name]:
                raise hidden_gradient(name)
        return {
            n: (v if create_graph else v.detach()) for n, v in found if v is not None
        }

    def _plain(self, model: nn.Module, batch: AnyBatch) -> Callable[[], None]:
        """The same step as ordinary training makes it: no tape, no cures."""

        def step() -> None:
            cast = autocast(model, self.autocast)
            with kept_buffers(model), _seeded(model, 0), cast:
                inputs = typed(model, batch.inputs(self.normalisation))
                if self.training_step is not None:
                    loss = self.training_step(model, inputs, batch.labels)
                else:
                    if self.mode == "train":
                        model.train()
                    result = output.call(model, inputs, self.keyword)
                    loss = (
                        self.loss(result, _labels(batch))
                        if self.loss is not None
                        else F.cross_entropy(self.logits(model, result), _labels(batch))
                    )
                torch.autograd.grad(
                    loss, list(shared_parameters(model).values()), allow_unused=True
                )

        return step


@contextmanager
def _seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed the generators that the model draws from, and put them back.

    Others are left alone: ``torch.manual_seed`` would also seed a CUDA device that
    nobody has used yet, and there is no way to undo that.
    """
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def _labels(batch: AnyBatch) -> Tensor:
    if batch.labels is None:
        raise UnsupportedModelError(
            "sample",
            expected="labels for the loss",
            got="none",
            hint="Pass (images, labels).",
        )
    return batch.labels
