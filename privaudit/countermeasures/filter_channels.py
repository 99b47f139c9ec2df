"""Channels that were pruned are left out of every comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privaudit.countermeasures._channels import channel_axis, mean_sizes, reference
from privaudit.countermeasures.base import Countermeasure, SeenFeatures
from privaudit.countermeasures.rescale_channels import scaled_back

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privaudit.defenses import Detection

_SILENT = 1e-2
"""Sizes below this share of the usual are all the same: pruned."""


class FilterChannels(Countermeasure):
    """Leaves channels out that are small for what they are on the attacker's images.

    The sizes ``mean |h_c|``, as shares of the usual ones, are sorted, and cut at the
    widest gap. Channels below it are neither in what was sent nor in any guess. Where
    ``rescale_channels`` has scaled them back they tell something, and all stay.
    Source: Lei 2025, section 5.4; differs in the gap, where the paper has a threshold
    for one model.
    """

    name: ClassVar[str] = "filter_channels"
    title: ClassVar[str] = "Pruned channels left out"
    source: ClassVar[str] = "Lei 2025"
    against: ClassVar[frozenset[str]] = frozenset({"disco"})
    exposures: ClassVar[frozenset[str]] = frozenset({"features"})
    rank: ClassVar[int] = 26

    gap: float = Field(default=2.0, gt=1)
    """Factor between the sizes on both sides of a gap that counts as one."""
    most: float = Field(default=0.9, gt=0, lt=1)
    """Largest share of the channels that may be left out."""

    def see_features(
        self, seen: SeenFeatures, found: Detection, generator: torch.Generator
    ) -> SeenFeatures:
        """See :class:`~privaudit.countermeasures.Countermeasure`."""
        layout, exposure = seen.target.exposure.layout, seen.target.exposure
        if scaled_back(seen.target):
            note = f"{self.name}: channels were scaled back, so none was left out"
            return replace(seen, notes=(*seen.notes, note))
        usual = mean_sizes(reference(seen), layout)
        sizes = mean_sizes(seen.observation.features, layout)
        kept = self._kept(sizes, usual)
        left_out = 1 - float(kept.double().mean())
        if not left_out:
            note = f"{self.name}: no gap between channels; all were compared"
            return replace(seen, notes=(*seen.notes, note))
        keep = _Keep(kept.nonzero()[:, 0], channel_axis(layout))
        features = keep(seen.observation.features)
        reads = replace(exposure, reads=(*exposure.reads, keep))
        note = f"{self.name}: {left_out:.0%} of the channels were left out"
        return SeenFeatures(
            replace(seen.target, exposure=reads),
            replace(seen.observation, features=features),
            (*seen.notes, note),
        )

    def _kept(self, sizes: Tensor, usual: Tensor) -> Tensor:
        """(channels,): True above the gap; everywhere, where there is none."""
        silent = usual <= 0
        share = sizes / usual.masked_fill(silent, 1)
        share = share / share[~silent].median().clamp_min(1e-300)
        logs = share.clamp_min(_SILENT).log()
        logs[silent] = 0.0
        ordered = logs.sort().values
        most = int(self.most * len(ordered))
        steps = (ordered[1:] - ordered[:-1])[:most]
        if not len(steps) or float(steps.max()) < math.log(self.gap):
            return ~silent | silent
        kept: Tensor = logs > ordered[int(steps.argmax())]
        return kept


@dataclass(frozen=True, eq=False)
class _Keep:
    """Some channels of features, in their order."""

    kept: Tensor
    axis: int

    def __call__(self, features: Tensor) -> Tensor:
        return features.index_select(self.axis, self.kept.to(features.device))
