"""A variational bottleneck before the classifier: gradients become random."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field, PrivateAttr

from privaudit.defenses.base import (
    GRADIENT,
    ClientStepContext,
    Defense,
    Detection,
    Fitted,
    GradientEvidence,
    TrainData,
)
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privaudit.exposure import FeatureExposure, GradientExposure

RECORDED = 20
"""Losses that the history holds at most."""


class Precode(Defense):
    """Puts a bottleneck that draws at random in front of the last linear layer.

    It changes the model, and so the gradient; nothing is done to the gradient itself.
    The user's weights are kept and trained on; with ``steps=0`` the module stays as it
    was drawn. β·KL belongs to the loss of that training. It is not part of the audited
    step, whose loss is the exposure's; a ``training_step`` can add it.

    Source: Scheliga 2022 (PRECODE); differs in eval mode, where nothing is drawn.
    """

    name: ClassVar[str] = "precode"
    title: ClassVar[str] = "PRECODE"
    source: ClassVar[str] = "Scheliga 2022"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    trained: ClassVar[bool] = True
    does_not_protect: ClassVar[str] = (
        "What layers before the bottleneck show on their own: closed forms of the "
        "first layer do not ask where its gradient came from."
    )
    known_to_attacks: ClassVar[bool] = True

    size: int = Field(default=256, ge=1)
    """k: entries of the bottleneck."""
    divergence_weight: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
    """β of the KL divergence."""
    steps: int = Field(default=200, ge=0)
    """Of training, by Adam."""
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Of Adam."""
    _fitted: bool = PrivateAttr(default=False)

    @classmethod
    def tiny(cls) -> Precode:
        """Two steps."""
        return cls(size=8, steps=2)

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`.

        Raises:
            ConfigError: It was not fitted, or the model is another than its own.
        """
        from privaudit.defenses._precode_module import bottlenecks

        self.require_fitted()
        if not any(bottlenecks(step.model)):
            raise self._missing("the model without the module")
        return dict(gradients)

    def require_fitted(self) -> None:
        """See :class:`~privaudit.defenses.Defense`."""
        if not self._fitted:
            raise self._missing("one that was not fitted")

    def fit(
        self,
        model: nn.Module,
        data: TrainData,
        *,
        exposure: FeatureExposure | GradientExposure,
        generator: torch.Generator,
    ) -> Fitted:
        """See :class:`~privaudit.defenses.Defense`."""
        from privaudit.defenses._precode_module import with_bottleneck
        from privaudit.exposure import GradientExposure

        if not isinstance(exposure, GradientExposure):
            raise self.misplaced("features")
        changed = with_bottleneck(model, self.size, generator)
        history = self._train(changed, data, exposure, generator)
        fitted = self.model_copy()
        fitted._fitted = True
        return Fitted(changed, fitted, {"loss": history} if history else {})

    def _train(
        self,
        model: nn.Module,
        data: TrainData,
        exposure: GradientExposure,
        generator: torch.Generator,
    ) -> list[tuple[int, float]]:
        """Adam on the task's loss and β·KL; the loss every few steps."""
        wanted = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.Adam(wanted, lr=self.learning_rate)
        losses: list[tuple[int, float]] = []
        with _training(model, generator):
            for number, (images, labels) in enumerate(self._batches(data)):
                loss = self._loss(model, data, exposure, images, labels)
                optimiser.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                optimiser.step()
                if number % max(1, self.steps // RECORDED) == 0:
                    losses.append((number, float(loss.detach())))
        optimiser.zero_grad(set_to_none=True)
        return losses

    def _batches(self, data: TrainData) -> Iterator[tuple[Tensor, Tensor]]:
        """As many as there are steps, over and over."""
        left = self.steps
        while left > 0:
            before = left
            for batch in itertools.islice(data.batches(), left):
                left -= 1
                yield batch
            if left == before:
                raise ConfigError(
                    "defense precode", expected="batches of images to train on",
                    got="none", hint="Pass train_data=, or steps=0.",
                )  # fmt: skip

    def _loss(
        self,
        model: nn.Module,
        data: TrainData,
        exposure: GradientExposure,
        images: Tensor,
        labels: Tensor,
    ) -> Tensor:
        from privaudit.defenses._precode_module import watched
        from privaudit.exposure import output

        device = next(model.parameters()).device
        inputs = exposure.normalisation.apply(images.to(device))
        with watched(model) as divergences:
            result = output.call(model, inputs, exposure.keyword)
        loss = data.loss(result, labels.to(device))
        return loss + self.divergence_weight * torch.stack(divergences).sum()

    def _missing(self, got: str) -> ConfigError:
        return ConfigError(
            "defense precode",
            expected="the model and the defense that fit() returns",
            got=got,
            hint="compare_defenses fits it; by hand: fitted = Precode().fit(model, "
            "data, exposure=, generator=), then audit fitted.model.",
        )

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        from privaudit.defenses._precode_module import bottlenecks

        there = any(bottlenecks(seen.model))
        return Detection(
            defense=cls.name, confidence=1.0 if there else 0.0,
            evidence="the model holds a variational bottleneck"
            if there
            else "the model holds no variational bottleneck",
        )  # fmt: skip


@contextmanager
def _training(model: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Train mode, draws that follow the generator; modes are put back."""
    modes = [(m, m.training) for m in model.modules()]
    seed = int(torch.randint(2**31, (), generator=generator))
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    model.train()
    try:
        with torch.random.fork_rng(devices=devices), torch.enable_grad():
            torch.default_generator.manual_seed(seed)
            for index in devices:
                torch.cuda.default_generators[index].manual_seed(seed)
            yield
    finally:
        for module, mode in modes:
            module.training = mode
