"""How much of what was sent is noise: searches stop there, and lean on their prior."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from privaudit.countermeasures._linear_layers import linear_layers, noise_of
from privaudit.countermeasures.base import Countermeasure, SeenGradient
from privaudit.defenses.base import GRADIENT

if TYPE_CHECKING:
    import torch

    from privaudit.defenses import Detection


class GradientNoise(Countermeasure):
    """Tells every search which share of the gradient is noise.

    From σ where it is known: relative to the gradient's size as the noise defenses
    state it, or σC/B of DP-SGD. Else from what a linear layer's gradient has beyond
    the rank that its rows allow.
    Source: design of this project.
    """

    name: ClassVar[str] = "gradient_noise"
    title: ClassVar[str] = "Noise taken into account"
    source: ClassVar[str] = "this project"
    against: ClassVar[frozenset[str]] = frozenset(
        {"gaussian_noise", "laplace_noise", "dp_sgd"}
    )
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    rank: ClassVar[int] = 10

    def see_gradient(
        self, seen: SeenGradient, found: Detection, generator: torch.Generator
    ) -> SeenGradient:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        share = self._share(seen, found, generator)
        if share is None:
            note = "noise: its size is not known, and no linear layer shows it"
            return replace(seen, notes=(*seen.notes, note))
        note = f"noise: {share:.1%} of the gradient's mean square"
        target = replace(seen.target, noise_share=share)
        return replace(seen, target=target, notes=(*seen.notes, note))

    def _share(
        self, seen: SeenGradient, found: Detection, generator: torch.Generator
    ) -> float | None:
        """Mean square of the noise over that of what was sent, in [0, 1]."""
        gradients = seen.observation.gradients
        relative = found.estimate.get("noise_std")
        if relative is not None:
            return relative**2 / (1 + relative**2)
        count = sum(g.numel() for g in gradients.values())
        square = sum(float(g.double().square().sum()) for g in gradients.values())
        if "noise_multiplier" in found.estimate and "max_norm" in found.estimate:
            std = found.estimate["noise_multiplier"] * found.estimate["max_norm"]
            noise = (std / seen.observation.batch_size) ** 2
        else:
            layers = linear_layers(seen.target, seen.observation, generator)
            measured = noise_of(layers, gradients)
            if measured is None:
                return None
            noise = measured**2
        return min(1.0, noise * count / square) if square else None
