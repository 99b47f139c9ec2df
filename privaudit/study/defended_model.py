"""A cut model whose device defends what it sends, run as a whole: what is it worth?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from privaudit.defenses import Defense
from privaudit.exposure import FeatureExposure


class DefendedModel(nn.Module):
    """The user's model with defenses where it is cut, called like the model itself.

    Each call draws anew. The model must be in the mode in which it is deployed.

    Args:
        model: The whole model.
        exposure: Where it is cut.
        defenses: In the order in which they act.
        seed: Of their draws.
    """

    def __init__(
        self,
        model: nn.Module,
        exposure: FeatureExposure,
        defenses: Sequence[Defense],
        *,
        seed: int,
    ) -> None:
        super().__init__()
        self.model, self._exposure = model, exposure
        self._defenses, self._seed, self._calls = tuple(defenses), seed, 0
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the server puts out for features that went through the defenses."""

        def run() -> Any:
            return self.model(*args, **kwargs)

        if not self._defenses:
            return run()
        self._calls += 1
        turn = self._seed + self._calls
        with torch.no_grad():
            features = self._exposure.captured(self.model, run, self._defenses, turn)
            sent = self._exposure.defended(features.float(), self._defenses, turn)
            return self._exposure.cut.finish(self.model, run, sent.to(features))
