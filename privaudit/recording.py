"""Record what a real client really sends: the gradient of one step of its own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from privaudit._round import RoundWatch
from privaudit._update import Update as Update
from privaudit._update import dense, digests
from privaudit._update_file import StepMode, UpdateFacts
from privaudit._update_fit import require_finite
from privaudit.errors import ConfigError
from privaudit.exposure import shared_parameters, unwrap
from privaudit.exposure.conditions import keep_activations
from privaudit.exposure.precision import autocast_now
from privaudit.exposure.unwrap import compiled_parts
from privaudit.tape import Recorder, Tape
from privaudit.types import Autocast

_WHERE = "record_step(model)"


@contextmanager
def record_step(
    model: nn.Module, *, masks: bool = False, local_steps: int = 1
) -> Iterator[RecordedStep]:
    """Record the gradient of one training step around the user's own code.

    Put forward, ``loss.backward()`` and, if you like, ``optimizer.step()`` inside.
    What the optimiser was given is recorded, clipping and unscaling included; without
    one, what the parameters hold at the end. Several backward passes before the one
    optimiser step are added up.

    Args:
        model: What the code trains; compiled and data-parallel wrappers are seen
            through. It comes back as the code left it, without a trace of this.
        masks: True also records the dropout draws, for the owner's own diagnostics.
            The forward pass then runs with dropout and attention spelled out, which
            a plain recording leaves alone.
        local_steps: Optimiser steps inside the block. Of more than one the weight
            difference is recorded, which plain SGD makes, with momentum or without.

    Raises:
        ConfigError: No gradient, more than one step, a gradient left from before, or
            values that are not finite.

    Example::

        with record_step(model) as step:
            loss_fn(model(images), labels).backward()
            optimizer.step()
        step.save("update.safetensors")
    """
    step = RecordedStep()
    watch = _Watch(model) if local_steps == 1 else RoundWatch(model, local_steps)
    with ExitStack() as stack:
        tapes = _record_masks(stack, model) if masks else []
        watch.start(stack)
        yield step
    step._finish(watch.update(tuple(tapes)))


class RecordedStep:
    """One recorded step, complete once its ``with`` block has ended."""

    def __init__(self) -> None:
        self._update: Update | None = None

    def __repr__(self) -> str:
        return f"RecordedStep({'not finished' if self._update is None else 'finished'})"

    @property
    def update(self) -> Update:
        """What the client sends, and the masks where they were recorded.

        Raises:
            ConfigError: The block has not ended, or ended with an error.
        """
        if self._update is None:
            raise ConfigError(
                "record_step(...).update",
                expected="a finished step",
                got="one whose with block has not ended, or ended with an error",
                hint="Use it after the block.",
            )
        return self._update

    @property
    def masks(self) -> tuple[Tape, ...]:
        """The client's own draws per forward pass; empty unless ``masks=True``."""
        return self.update.masks

    def save(self, path: str | Path, *, masks: bool = False) -> Path:
        """Write what a client sends; see :meth:`Update.save`."""
        return self.update.save(path, masks=masks)

    def _finish(self, update: Update) -> None:
        self._update = update


class _Watch:
    """Hooks on parameters and optimisers, and what they saw.

    Attributes:
        kept: Per parameter its gradient after the latest backward pass.
        handed: Per parameter its gradient as the optimiser was given it.
        passes: Backward passes per parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        self._given = model
        self._model, _ = unwrap(model)
        self._shared = shared_parameters(self._model)
        self._names = {id(p): n for n, p in self._shared.items()}
        self.kept: dict[str, Tensor] = {}
        self.handed: dict[str, Tensor] = {}
        self.passes: dict[str, int] = {}
        self._before_step: dict[str, int] = {}
        self._stepped: set[str] = set()
        self._fault: ConfigError | None = None
        self._weights: dict[str, str] = {}
        self._versions: dict[str, int] = {}
        self._mode: StepMode | None = None
        self._image_shape: tuple[int, int, int] | None = None
        self._autocast: Autocast | None = None

    def start(self, stack: ExitStack) -> None:
        """Put the hooks in place, last in each row; ``stack`` takes them away."""
        for name, parameter in self._shared.items():
            handle = parameter.register_hook(self._before(name))  # type: ignore[no-untyped-call]
            stack.callback(handle.remove)
            after = parameter.register_post_accumulate_grad_hook(self._after)  # type: ignore[no-untyped-call]
            stack.callback(after.remove)
        seen = self._given.register_forward_pre_hook(self._forward, with_kwargs=True)
        stack.callback(seen.remove)
        stack.callback(register_optimizer_step_pre_hook(self._pre_step).remove)
        stack.callback(register_optimizer_step_post_hook(self._post_step).remove)

    def update(self, tapes: tuple[Tape, ...]) -> Update:
        """What was recorded.

        Raises:
            ConfigError: It is not the gradient of one step.
        """
        self._require_same_parameters()
        gradients = {n: g for n in self._shared if (g := self._final(n)) is not None}
        if self._fault is not None:
            raise self._fault
        if not gradients:
            raise self._nothing()
        for name, gradient in gradients.items():
            require_finite(name, gradient)
        facts = UpdateFacts(
            source="recorded step",
            model=type(self._model).__name__,
            mode=self._mode,
            autocast=self._autocast,
            image_shape=self._image_shape,
            micro_batches=max(self.passes.values()),
            absent=[n for n in self._shared if n not in gradients],
            weights=self._weights,
        )
        return Update({n: g.cpu() for n, g in gradients.items()}, facts, tapes)

    def _forward(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Autocast and the size of the input, where the model itself is called."""
        if torch.is_grad_enabled():
            self._autocast = autocast_now(self._model)
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and value.dim() == 4:
                channels, height, width = value.shape[1:]
                self._image_shape = (channels, height, width)
                return

    def _before(self, name: str) -> Callable[[Tensor], None]:
        """Looks at a parameter just before a gradient is added to it."""

        def look(_: Tensor) -> None:
            if name in self._stepped:
                return
            if not self._weights:
                self._note_state()
            parameter = self._shared[name]
            left = parameter.grad is not None and _any(parameter.grad)
            if name not in self.kept:
                if left:
                    self._note(_left_over(name))
            elif (not left and _any(self.kept[name])) or (
                parameter._version != self._versions[name]
            ):
                self._note(_two_steps(f"the gradient of {name!r} was used or reset"))

        return look

    def _note_state(self) -> None:
        """Weights and modes as the step found them: whoever loaded them has done so."""
        self._weights = digests(dict(self._model.named_parameters()))
        self._versions = {n: p._version for n, p in self._shared.items()}
        modes = {m.training for m in self._model.modules()}
        self._mode = (
            "mixed" if len(modes) == 2 else "train" if True in modes else "eval"
        )

    def _after(self, parameter: Tensor) -> None:
        name = self._names[id(parameter)]
        if name in self._stepped or parameter.grad is None:
            return
        self.kept[name] = _copy(parameter.grad)
        self.passes[name] = self.passes.get(name, 0) + 1

    def _pre_step(self, optimiser: Optimizer, _: Any, __: Any) -> None:
        self._before_step = dict(self.passes)
        for name in self._of(optimiser):
            if name in self._stepped:
                raise _two_steps(f"{name!r} was stepped again")
            self._hand_over(name, optimiser)

    def _post_step(self, optimiser: Optimizer, _: Any, __: Any) -> None:
        for name in self._of(optimiser):
            if self.passes.get(name, 0) != self._before_step.get(name, 0):
                # The backward pass ran inside, in a closure.
                self._hand_over(name, optimiser)
            if name in self.handed:
                self._stepped.add(name)

    def _of(self, optimiser: Optimizer) -> list[str]:
        groups = (p for group in optimiser.param_groups for p in group["params"])
        return [self._names[id(p)] for p in groups if id(p) in self._names]

    def _hand_over(self, name: str, optimiser: Optimizer) -> None:
        gradient = self._shared[name].grad
        if gradient is None:
            return
        if name not in self.kept:
            if _any(gradient):
                self._note(_left_over(name))
            return
        # Fused optimisers get the gradient times the loss scale, and the scale.
        scale = getattr(optimiser, "grad_scale", None)
        found = _copy(gradient)
        self.handed[name] = found if scale is None else found / scale

    def _final(self, name: str) -> Tensor | None:
        """What was sent of one parameter; None where it took no part."""
        gradient = self._shared[name].grad
        if name in self.handed:
            return self.handed[name]
        kept = self.kept.get(name)
        if gradient is None or kept is None:
            return kept
        # Clipped since, or set to zero for the next step.
        return _copy(gradient) if _any(gradient) else kept

    def _note(self, fault: ConfigError) -> None:
        """Kept for the end: raising inside a backward pass would hide the text."""
        if self._fault is None:
            self._fault = fault

    def _nothing(self) -> ConfigError:
        return ConfigError(
            _WHERE,
            expected="one training step with loss.backward()",
            got=f"no gradient in any parameter of {type(self._model).__name__}",
            hint="Run forward and loss.backward() of this very model inside the block. "
            "Gradients from torch.autograd.grad: Update.from_gradients(mapping).",
        )

    def _require_same_parameters(self) -> None:
        now = shared_parameters(self._model)
        for name in [*self._shared, *now]:
            if now.get(name) is not self._shared.get(name):
                raise ConfigError(
                    f"{_WHERE}: {name!r}",
                    expected="the same trainable parameters throughout the block",
                    got="one that was replaced, frozen or added inside it",
                    hint="Load, freeze and convert the model before the block.",
                )


def _record_masks(stack: ExitStack, model: nn.Module) -> list[Tape]:
    """Run every forward pass of the model under a recorder; the tapes grow."""
    inner, _ = unwrap(model)
    if inner is not model or compiled_parts(model):
        raise ConfigError(
            "record_step(masks=True)",
            expected="the plain module",
            got=f"{type(model).__name__}, compiled or data-parallel",
            hint="Record without masks: the gradient needs none of them.",
        )
    stack.enter_context(keep_activations())
    tapes: list[Tape] = []
    running: list[Recorder] = []

    def begin(_: nn.Module, __: Any) -> None:
        running.append(Recorder(model))
        running[-1].__enter__()

    def end(_: nn.Module, __: Any, output: Any) -> Any:
        recorder = running.pop()
        recorder.__exit__(None, None, None)
        if torch.is_grad_enabled():
            tapes.append(recorder.tape)
        return recorder.latest(output)

    stack.callback(model.register_forward_pre_hook(begin).remove)
    stack.callback(model.register_forward_hook(end, always_call=True).remove)
    return tapes


def _copy(gradient: Tensor) -> Tensor:
    return dense(gradient.detach()).clone()


def _any(gradient: Tensor) -> bool:
    return bool(dense(gradient.detach()).any())


def _two_steps(what: str) -> ConfigError:
    return ConfigError(
        _WHERE,
        expected="one local step",
        got=f"more than one ({what})",
        hint="Record around a single one, such as one batch of the loop, or max_steps=1"
        " in a trainer; or say how many there are with local_steps=.",
    )


def _left_over(name: str) -> ConfigError:
    return ConfigError(
        f"{_WHERE}: {name!r}",
        expected="no gradient from before the step",
        got="one that was not reset",
        hint="Call optimizer.zero_grad() before loss.backward(): what is left over "
        "would be mixed into what the client sends.",
    )
