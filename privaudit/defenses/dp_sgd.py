"""Differential privacy: each image's gradient is clipped, and noise is added."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from privaudit.defenses.base import (
    GRADIENT,
    ClientStepContext,
    Defense,
    Detection,
    GradientEvidence,
)
from privaudit.defenses.clipping import clipped
from privaudit.defenses.noise import normal
from privaudit.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class DpSgd(Defense):
    """``(Σ_b clip(g_b, C) + N(0, (σC)²)) / B``, as Opacus trains.

    Opacus says whether the model can be trained so, and counts ε. The gradient of each
    image is the exposure's own, of that image alone under the masks that its step drew:
    Opacus' hooks would draw others, and know fewer layers. Both give the same numbers.

    Source: Abadi 2016; needs the extra ``dp``. The loss must be a mean over the batch.
    """

    name: ClassVar[str] = "dp_sgd"
    title: ClassVar[str] = "DP-SGD"
    source: ClassVar[str] = "Abadi 2016"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    does_not_protect: ClassVar[str] = (
        "More than ε says: with a large ε, or noise that is small beside a clipped "
        "gradient, images show as they do through plain noise."
    )

    noise_multiplier: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """σ: the noise of the sum as a multiple of C."""
    max_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """C: the largest norm of one image's gradient."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """δ: how likely ε may fail; below one over the number of images."""
    epochs: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Training that ε is counted for."""
    sample_rate: float = Field(default=0.01, gt=0, le=1)
    """q: share of a client's images in one step."""

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`.

        Raises:
            ConfigError: The step is no single one, or the model shares information
                between the images of a batch.
            MissingDependencyError: Opacus is not installed.
        """
        if step.exposure.local is not None:
            raise ConfigError(
                "defense dp_sgd", expected="one step of SGD",
                got=step.exposure.local.words,
                hint="Each local step is clipped and noised for itself: audit one.",
            )  # fmt: skip
        require_compatible(step.model)
        size = len(step.batch)
        total = {n: g.new_zeros(g.shape) for n, g in gradients.items()}
        for row in range(size):
            for name, part in clipped(step.gradient_of(row), self.max_norm).items():
                total[name] = total[name] + part.to(total[name])
        std = self.noise_multiplier * self.max_norm
        return {n: (g + std * normal(g, generator)) / size for n, g in total.items()}

    def notes(self) -> list[str]:
        """See :class:`~privaudit.defenses.Defense`: ε of all training."""
        return [
            f"ε = {self.epsilon():.3g} at δ = {self.delta:g}, {self.epochs:g} epochs "
            f"at a sample rate of {self.sample_rate:g} (Rényi accountant of Opacus)"
        ]

    def epsilon(self, steps: int | None = None) -> float:
        """ε by Opacus' accountant of Rényi divergences; infinite without noise.

        Args:
            steps: How many are made; None: as many as ``epochs`` take.

        Raises:
            MissingDependencyError: Opacus is not installed.
        """
        if self.noise_multiplier == 0:
            return math.inf
        accountant = _opacus().accountants.RDPAccountant()
        made = steps or math.ceil(self.epochs / self.sample_rate)
        accountant.history = [(self.noise_multiplier, self.sample_rate, made)]
        with warnings.catch_warnings():
            # The largest order is the best one for tiny ε: a bound all the same.
            warnings.simplefilter("ignore")
            return float(accountant.get_epsilon(self.delta))

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """Opacus leaves its wrapper around a model, and its hooks on it."""
        wrapped = [
            type(m).__name__ for m in seen.model.modules()
            if type(m).__module__.startswith("opacus.")
        ]  # fmt: skip
        hooked = [
            n for n, p in seen.model.named_parameters() if hasattr(p, "grad_sample")
        ]
        said = [*wrapped[:1], *(f"grad_sample of {n}" for n in hooked[:1])]
        return Detection(
            defense=cls.name, confidence=1.0 if said else 0.0,
            evidence=f"the model carries {', '.join(said)} of Opacus"
            if said
            else "nothing of Opacus is on the model",
        )  # fmt: skip


def require_compatible(model: nn.Module) -> None:
    """Refuse a model that Opacus would not train.

    Raises:
        ConfigError: With what it says of it.
        MissingDependencyError: Opacus is not installed.
    """
    validator = _opacus().validators.ModuleValidator
    # In which mode it stands is the exposure's affair: the step sets it.
    faults = [
        str(e) for e in validator.validate(model) if "training mode" not in str(e)
    ]
    if faults:
        raise ConfigError(
            "defense dp_sgd",
            expected="a model whose images do not meet in a batch",
            got="; ".join(faults),
            hint="opacus.validators.ModuleValidator.fix(model) replaces such layers.",
        )


def _opacus() -> Any:
    """The package.

    Raises:
        MissingDependencyError: It is not installed.
    """
    import importlib

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in ("accountants", "validators"):
                importlib.import_module(f"opacus.{part}")
            return importlib.import_module("opacus")
    except ImportError as error:
        raise MissingDependencyError(
            "defense dp_sgd", expected="the package opacus",
            got=f"{type(error).__name__}: {error}",
            hint='pip install "privaudit[dp]"',
        ) from error  # fmt: skip
