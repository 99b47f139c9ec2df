"""Noise on what is sent: Gaussian or Laplace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.defenses._gradient_traces import noise as gradient_noise
from privaudit.defenses._traces import Difference, ramp
from privaudit.defenses._traces import difference as feature_difference
from privaudit.defenses.base import (
    FEATURES,
    GRADIENT,
    ClientStepContext,
    Defense,
    Detection,
    FeatureEvidence,
    GradientEvidence,
)

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.types import FeatureLayout

BOTH = frozenset({FEATURES, GRADIENT})


class _AdditiveNoise(Defense):
    """What both kinds share: one σ for all that is sent, and how it shows."""

    exposures: ClassVar[frozenset[str]] = BOTH
    does_not_protect: ClassVar[str] = (
        "What stands in many entries at once: a layer's gradient holds each pixel in "
        "hundreds of them, and their mean has little noise left."
    )
    heavy: ClassVar[bool]
    """Whether its tails are heavier than normal ones."""

    noise_std: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """σ, the standard deviation, as a share of the root mean square of all entries."""

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """See :class:`~privaudit.defenses.Defense`."""
        return sent + self.noise_std * _size([sent]) * self._drawn(sent, generator)

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`."""
        std = self.noise_std * _size([*gradients.values()])
        return {n: g + std * self._drawn(g, generator) for n, g in gradients.items()}

    @classmethod
    def detect_features(cls, seen: FeatureEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        return _detected(cls.name, feature_difference(seen), heavy=cls.heavy)

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        return _detected(cls.name, gradient_noise(seen), heavy=cls.heavy)

    @abstractmethod
    def _drawn(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Noise of standard deviation 1, of the shape of ``like``."""


class GaussianNoise(_AdditiveNoise):
    """Adds normal noise of a fixed share of the size of what is sent.

    One standard deviation for all entries of a gradient, or of an image's features.
    No privacy is accounted for: nothing is clipped (that is ``dp_sgd``).

    Source: Zhu 2019, section 5; differs in σ, which is relative to the root mean
    square of what is sent.
    """

    name: ClassVar[str] = "gaussian_noise"
    title: ClassVar[str] = "Gaussian noise"
    source: ClassVar[str] = "Zhu 2019"
    heavy: ClassVar[bool] = False

    def _drawn(self, like: Tensor, generator: torch.Generator) -> Tensor:
        return normal(like, generator)


class LaplaceNoise(_AdditiveNoise):
    """As ``gaussian_noise``, with heavier tails.

    Source: Zhu 2019, section 5; differs in σ, which is relative to the root mean
    square of what is sent, and is the standard deviation b·√2.
    """

    name: ClassVar[str] = "laplace_noise"
    title: ClassVar[str] = "Laplace noise"
    source: ClassVar[str] = "Zhu 2019"
    heavy: ClassVar[bool] = True

    def _drawn(self, like: Tensor, generator: torch.Generator) -> Tensor:
        return laplace(like, generator)


_HEAVY = 3.7
"""Kurtosis between that of normal (3) and of Laplace noise, twice (4.5)."""


def _detected(name: str, gap: Difference | None, *, heavy: bool) -> Detection | None:
    """What two sendings of the same say; noise moves nearly every value a little."""
    if gap is None:
        return None
    all_over = gap.differing > 0.9 * (1 - gap.zeroed) and gap.zeroed < 0.5
    fits = all_over and (gap.kurtosis >= _HEAVY) == heavy
    return Detection(
        defense=name,
        confidence=ramp(gap.noise, 5e-4) if fits else 0.0,
        evidence=f"two sendings differ by noise of {gap.noise:.3g} of the root mean "
        "square",
        estimate={"noise_std": gap.noise},
    )


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal noise, drawn on the CPU."""
    return torch.randn(like.shape, generator=generator).to(like)


def laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Laplace noise of mean 0 and standard deviation 1, drawn on the CPU."""
    uniform = torch.rand(like.shape, generator=generator, dtype=torch.float64)
    centred = uniform - 0.5
    # 1 - 2|u| is zero at one draw in 2^53: the logarithm is kept off it.
    tail = (1 - 2 * centred.abs()).clamp_min(2.0**-53).log()
    return (-centred.sign() * tail / 2**0.5).to(like)


def _size(parts: Sequence[Tensor]) -> float:
    """Root mean square of all entries."""
    square = sum(float(p.double().square().sum()) for p in parts)
    count = sum(p.numel() for p in parts)
    return float((square / max(1, count)) ** 0.5)
