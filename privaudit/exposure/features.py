"""The split exposure: a server sees what a device sends from inside the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.exposure import output
from privaudit.exposure.cut import cut_conditions
from privaudit.exposure.cut_resolve import AnyCut
from privaudit.types import Batch, FeatureLayout, FeatureObservation

if TYPE_CHECKING:
    from privaudit.defenses import Defense


@dataclass(frozen=True, eq=False)
class FeatureExposure:
    """Makes the features of any images, and finishes the forward pass from them.

    The model runs in the mode that it is in: whoever opens an audit puts it into eval.

    Attributes:
        normalisation: From [0, 1] pixels to what the model takes.
        cut: Where the model is cut.
        layout: Which axis of the features is what.
        keyword: Name of the input for models that take it by keyword only.
        reads: What an attacker does to features before it looks at them, in order.
    """

    normalisation: Normalisation
    cut: AnyCut
    layout: FeatureLayout
    keyword: str | None = None
    reads: Sequence[Callable[[Tensor], Tensor]] = ()

    def observe(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        defenses: Sequence[Defense] = (),
        seed: int = 0,
    ) -> FeatureObservation:
        """What the device sends for ``batch``.

        Args:
            model: The whole model.
            batch: The images.
            defenses: What is done to the features before they are sent, in order.
            seed: Of the defenses' draws; every image has draws of its own.
        """
        with torch.no_grad():
            sent = self._computed(model, batch.images, defenses, seed)
            sent = self.defended(sent.detach().float(), defenses, seed)
        return FeatureObservation(sent.clone(), batch.shape)

    def defended(self, sent: Tensor, defenses: Sequence[Defense], seed: int) -> Tensor:
        """Features (batch, …) as defenses let them leave the device."""
        if not defenses:
            return sent
        rows = []
        for index, row in enumerate(torch.split(sent, 1)):
            draws = torch.Generator().manual_seed(_mixed(seed, index))
            for defense in defenses:
                row = defense.apply_features(row, self.layout, draws)
            rows.append(row)
        return torch.cat(rows)

    def captured(
        self,
        model: nn.Module,
        run: Callable[[], Any],
        defenses: Sequence[Defense],
        seed: int,
    ) -> Tensor:
        """Features as a device computes them, under defenses that act before the cut.

        Args:
            model: The whole model.
            run: Runs it.
            defenses: Those that do not act inside change nothing here.
            seed: Of their draws.
        """
        draws = torch.Generator().manual_seed(seed)
        with ExitStack() as stack:
            for defense in defenses:
                held = defense.on_device(model, self, run, draws)
                stack.enter_context(held)
            return self.cut.capture(model, run)

    def _computed(
        self, model: nn.Module, images: Tensor, defenses: Sequence[Defense], seed: int
    ) -> Tensor:
        if not any(d.acts_inside for d in defenses):
            return self.predict(model, images)
        rows = []
        for index, image in enumerate(torch.split(images, 1)):
            run = partial(self._forward, model, image)
            rows.append(self.captured(model, run, defenses, _mixed(seed, index) + 1))
        return torch.cat(rows)

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """The features of a guess, with their graph.

        Args:
            model: The whole model.
            images: (batch, channels, height, width), [0, 1] being black to white;
                values outside are taken as they are.
        """
        found = self.cut.capture(model, lambda: self._forward(model, images))
        for read in self.reads:
            found = read(found)
        return found

    def finish(self, model: nn.Module, images: Tensor, features: Tensor) -> Any:
        """The model's output when the server goes on from ``features``.

        Args:
            model: The whole model.
            images: (batch, channels, height, width) of any content; only their shape
                counts where everything goes through the cut.
            features: (batch, …) as :meth:`predict` gives them.
        """
        return self.cut.finish(model, lambda: self._forward(model, images), features)

    def whole(self, model: nn.Module, images: Tensor) -> Any:
        """The output of the whole model, uncut, under the conditions of a capture."""
        with cut_conditions(model):
            return self._forward(model, images)

    def _forward(self, model: nn.Module, images: Tensor) -> Any:
        inputs = self.normalisation.apply(images)
        inputs = inputs.clone() if inputs is images else inputs
        return output.call(model, inputs, self.keyword)


def _mixed(seed: int, index: int) -> int:
    """A seed for each image, far from those of others."""
    return (seed * 1_000_003 + index * 7_919 + 1) % 2**63
