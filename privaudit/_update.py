"""What a client sent: gradients by name, and enough facts to attack them elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._update_file import MASK, UpdateFacts, facts_of, read, rolled
from privaudit._update_file import save as save_file
from privaudit._update_fit import Fitted, fits, missing_of, named_as
from privaudit.config import Client, OptimizerName
from privaudit.errors import ConfigError
from privaudit.exposure import shared_parameters, unwrap
from privaudit.tape import Tape, readable


@dataclass(frozen=True, eq=False)
class Update:
    """The gradient of one step as a client sends it.

    Attributes:
        gradients: Per parameter by the user's own names, on the CPU.
        facts: Versions, shapes of the input, digests of the weights.
        masks: The client's own dropout draws per forward pass. Not sent; here only
            for the owner, and not saved unless asked for.
    """

    gradients: Mapping[str, Tensor]
    facts: UpdateFacts = field(default_factory=UpdateFacts)
    masks: tuple[Tape, ...] = ()

    @classmethod
    def from_gradients(cls, gradients: Mapping[str, Tensor | None]) -> Update:
        """Gradients that another framework hands over.

        Args:
            gradients: By parameter name. None marks a parameter without a gradient.

        Raises:
            ConfigError: Nothing in it, or something that is no gradient.
        """
        values = {readable(n): g for n, g in gradients.items()}
        kept = {n: _plain(n, g) for n, g in values.items() if g is not None}
        if not kept:
            raise ConfigError(
                "Update.from_gradients(gradients)",
                expected="a mapping from parameter names to gradients",
                got="no tensor in it",
                hint='Pass, for example, {"fc.weight": model.fc.weight.grad, …}.',
            )
        absent = [n for n, g in values.items() if g is None]
        return cls(kept, UpdateFacts(absent=absent))

    @classmethod
    def from_delta(
        cls,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        lr: float | None = None,
        local_steps: int = 1,
        optimizer: OptimizerName = "sgd",
        momentum: float = 0.0,
    ) -> Update:
        """What a FedAvg update holds: (before - after) / lr.

        Of one step of SGD that is its gradient, of several about the sum of theirs.
        No weight decay: it makes another difference. The momentum starts at zero.

        Args:
            before: ``state_dict`` that the server sent.
            after: ``state_dict`` that came back.
            lr: Learning rate of the step, or of all steps.
            local_steps: How many steps were taken, each on as many images.
            optimizer: ``sgd``, or ``adamw`` for one step of it.
            momentum: Of SGD.

        Raises:
            ConfigError: No learning rate, other names or shapes, nothing changed, or
                steps that cannot be repeated.
        """
        _require_lr(lr)
        # The same rules as for a client that is simulated.
        Client(local_steps=local_steps, lr=lr, optimizer=optimizer, momentum=momentum)
        step = float(lr or 0.0)
        _same_names(before, after)
        gradients = {
            readable(n): _difference(n, before[n], after[n], step)
            for n in before
            if before[n].is_floating_point()
        }
        changed = _norm(gradients.values()) * step
        if changed == 0.0:
            raise ConfigError(
                "Update.from_delta(before, after)",
                expected="weights that changed",
                got="the same weights twice",
                hint="Copy the state before training: state_dict() shows the live "
                "weights. Use {k: v.clone() for k, v in model.state_dict().items()}.",
            )
        facts = UpdateFacts(
            source="weight difference",
            lr=step,
            local_steps=local_steps,
            optimizer=optimizer,
            momentum=momentum,
            rounding=_rounding(before, after, changed),
            weights=digests(before),
        )
        return cls(gradients, facts)

    def check(self, model: nn.Module, *, other_weights: bool = False) -> None:
        """Refuse an update that this model cannot have made.

        Args:
            model: The model with the weights before the step.
            other_weights: True takes an update of other weights on purpose.

        Raises:
            ConfigError: A tensor is missing, foreign, of another shape or type, not
                finite, or was made with other weights; each by its name.
        """
        self.fit(model, other_weights=other_weights)

    def fit(self, model: nn.Module, *, other_weights: bool = False) -> Fitted:
        """The gradients as this model names them; refusals as in :meth:`check`."""
        inner, _ = unwrap(model)
        shared = shared_parameters(inner)
        found, left_out = named_as(inner, shared, self.gradients)
        missing = [n for n in shared if n not in found and n not in self.facts.absent]
        if missing:
            raise missing_of(inner, missing)
        for name, gradient in found.items():
            fits(name, gradient, shared[name])
        if not other_weights:
            self._require_weights(inner)
        on_device = {n: found[n].to(p.device) for n, p in shared.items() if n in found}
        return Fitted(on_device, left_out)

    def digest(self) -> str:
        """SHA-256 over names and bytes of the gradients."""
        whole = hashlib.sha256()
        for name, value in sorted(digests(self.gradients, length=64).items()):
            whole.update(f"{name}={value};".encode())
        return f"sha256:{whole.hexdigest()}"

    def save(self, path: str | Path, *, masks: bool = False) -> Path:
        """Write a safetensors file, readable by its owner only: gradients leak.

        Args:
            path: Where to.
            masks: True adds the client's own dropout masks, for diagnostics. A client
                does not send them.

        Raises:
            ConfigError: No masks were recorded, or the place cannot be written.
        """
        tapes = self._require_masks() if masks else ()
        return save_file(Path(path), self.gradients, self.facts, tapes)

    @classmethod
    def load(cls, path: str | Path) -> Update:
        """Read what :meth:`save` wrote.

        Raises:
            ConfigError: Not there, damaged, not safetensors, or of another format.
        """
        file = Path(path)
        tensors, metadata = read(file)
        facts = facts_of(file, metadata)
        masks = rolled(file, facts, tensors)
        gradients = {n: t for n, t in tensors.items() if not n.startswith(MASK)}
        return cls(gradients, facts.model_copy(update={"masks": []}), masks)

    def _require_masks(self) -> tuple[Tape, ...]:
        if not self.masks:
            raise ConfigError(
                "save(masks=True)",
                expected="recorded masks",
                got="none",
                hint="Record them: record_step(model, masks=True).",
            )
        return self.masks

    def _require_weights(self, model: nn.Module) -> None:
        known = self.facts.weights
        own = {readable(n): p for n, p in model.named_parameters()}
        shown = digests({n: p for n, p in own.items() if n in known})
        others = [n for n, value in shown.items() if value != known[n]]
        if others:
            raise ConfigError(
                f"update: weights of {others[0]!r}",
                expected="the weights that the update was made with",
                got=f"other weights in {len(others)} of {len(shown)} tensors",
                hint="The update was made with other weights: load those from before "
                "the step, or pass other_weights=True to attack it all the same.",
            )


def digests(tensors: Mapping[str, Tensor], *, length: int = 16) -> dict[str, str]:
    """Hex digest per tensor over dtype, shape and bytes."""
    return {readable(n): _digest(t)[:length] for n, t in tensors.items()}


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    found = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _plain(name: str, gradient: Any) -> Tensor:
    if not isinstance(gradient, Tensor) or not gradient.is_floating_point():
        got = gradient.dtype if isinstance(gradient, Tensor) else type(gradient)
        raise ConfigError(
            f"update[{name!r}]",
            expected="a floating-point tensor",
            got=str(got),
            hint="Convert it, for example with torch.from_numpy(array).float().",
        )
    return dense(gradient).detach().cpu().clone()


def dense(tensor: Tensor) -> Tensor:
    """Sparse gradients as ordinary ones."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _require_lr(lr: float | None) -> None:
    if lr is None or not lr > 0 or lr == float("inf"):
        raise ConfigError(
            "Update.from_delta(lr=)",
            expected="the learning rate of the step, greater than 0",
            got=repr(lr),
            hint="A weight difference is -lr times the gradient: without lr its size "
            "means nothing. Pass the client's learning rate.",
        )


def _same_names(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    for name in sorted(set(before) ^ set(after)):
        side = "after" if name in before else "before"
        raise ConfigError(
            f"Update.from_delta: {name!r}",
            expected="the same tensors before and after",
            got=f"none in {side}",
            hint="Pass the full state_dict of both moments.",
        )


def _difference(name: str, before: Tensor, after: Tensor, lr: float) -> Tensor:
    if before.shape != after.shape:
        raise ConfigError(
            f"Update.from_delta: {name!r}",
            expected=f"shape {tuple(before.shape)} as before",
            got=str(tuple(after.shape)),
            hint="Both states must be of the same model.",
        )
    old, new = before.detach().cpu().double(), after.detach().cpu().double()
    return ((old - new) / lr).to(before.dtype)


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(sum(float(t.double().square().sum()) for t in tensors) ** 0.5)


def _rounding(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], changed: float
) -> float:
    """Half a unit in the last place of the weights, against the change itself.

    Of the larger of both: a small weight may have grown by its step.
    """
    lost = [
        torch.finfo(t.dtype).eps
        / 2
        * torch.maximum(t.detach().double().abs(), after[n].detach().double().abs())
        for n, t in before.items()
        if t.is_floating_point()
    ]
    return _norm(lost) / changed
