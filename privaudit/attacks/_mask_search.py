"""Dropout masks as unknowns of a search: where they start, and what is known of them.

Source: Scheliga 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from privaudit.attacks._masks import Reading, read_mask
from privaudit.attacks._scene import Scene
from privaudit.attacks._unfold import still
from privaudit.tape import Draw, Tape

Initialisation = Literal["bernoulli", "normal_keep", "normal_half", "analytical"]


class MaskSearch:
    """The masks of a step that are neither all ones nor all zeros.

    Args:
        scene: The observation.
        initialisation: Where they start.
        hold_certain: With ``analytical``: what the gradient shows beyond doubt stays.
    """

    def __init__(
        self, scene: Scene, initialisation: Initialisation, *, hold_certain: bool = True
    ) -> None:
        self._blank, self._initialisation = scene.structure.tape, initialisation
        self._unknown = [
            i for i, d in enumerate(self._blank) if d.is_mask and 0 < (d.p or 0) < 1
        ]
        self._draws = [self._blank.draws[i] for i in self._unknown]
        read = initialisation == "analytical"
        self._readings: list[Reading | None] = [
            read_mask(scene, i) if read else None for i in self._unknown
        ]
        self._hold_certain = hold_certain

    def starts(self, generator: torch.Generator) -> list[Tensor]:
        """One mask per unknown draw, drawn where it is not read off."""
        return [
            self._drawn(draw, generator) if reading is None else reading.value
            for draw, reading in zip(self._draws, self._readings, strict=True)
        ]

    def neutral(self) -> list[Tensor]:
        """One mask per unknown draw: as read off, else what it is on average."""
        return [
            self._like(draw, torch.tensor(1 - (draw.p or 0.0)))
            if reading is None
            else reading.value
            for draw, reading in zip(self._draws, self._readings, strict=True)
        ]

    @property
    def held(self) -> list[Tensor | None]:
        """Per mask which entries must not move."""
        return [
            r.certain if r is not None and self._hold_certain else None
            for r in self._readings
        ]

    @property
    def unknown(self) -> int:
        """How many entries are to be found."""
        masks = zip(self.neutral(), self.held, strict=True)
        return sum(m.numel() if h is None else int((~h).sum()) for m, h in masks)

    def tape_of(self, masks: Sequence[Tensor]) -> Tape | None:
        """The step's tape with these masks in it."""
        if not len(self._blank):
            return None
        values = still(self._blank)
        for index, mask in zip(self._unknown, masks, strict=True):
            values[index] = mask
        return self._blank.with_values(values)

    def rates(self, weight: float) -> Callable[[Sequence[Tensor]], Tensor] | None:
        """λ·Ω(Ψ), each mask should drop as many as its layer does; None: no masks."""
        if not self._draws:
            return None
        rates = [d.p or 0.0 for d in self._draws]

        def penalty(masks: Sequence[Tensor]) -> Tensor:
            parts = [
                (p - (1 - m.clamp_min(0).sum() / m.numel())).abs()
                for p, m in zip(rates, masks, strict=True)
            ]
            return weight * torch.stack(parts).sum()

        return penalty

    def _drawn(self, draw: Draw, generator: torch.Generator) -> Tensor:
        shape = () if draw.value is None else tuple(draw.value.shape)
        keep = 1 - (draw.p or 0.0)
        if self._initialisation == "normal_half":
            mask = 0.5 + 0.25 * torch.randn(shape, generator=generator)
        elif self._initialisation == "normal_keep":
            count = max(1, torch.Size(shape).numel())
            mask = keep + torch.randn(shape, generator=generator) / count**0.5
        else:
            mask = torch.rand(shape, generator=generator).lt(keep).float()
        return self._like(draw, mask.clamp(0, 1))

    def _like(self, draw: Draw, mask: Tensor) -> Tensor:
        """In the shape, type and place of the draw's own values."""
        like = draw.value
        return mask if like is None else mask.to(like).expand_as(like).clone()
