"""A batch comes back in any order: who is who, before anything is scored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privaudit.result import MaskScore
from privaudit.tape import Draw, Tape


def assignment(truth: Tensor, guess: Tensor) -> list[int]:
    """For each image of ``truth`` the index of its reconstruction.

    The total squared error is the least possible (Hungarian method).

    Args:
        truth: (batch, channels, height, width).
        guess: The same shape.
    """
    from scipy.optimize import linear_sum_assignment

    if len(truth) == 1:
        return [0]
    a, b = truth.double().flatten(1), guess.double().flatten(1)
    cost = torch.cdist(a, b).square()
    _, columns = linear_sum_assignment(cost.cpu().numpy())
    return [int(c) for c in columns]


def mask_scores(
    pairs: Sequence[tuple[Tape, Tape, Sequence[int]]],
) -> list[MaskScore]:
    """How well each mask was found, averaged over clients.

    Args:
        pairs: Per client its own tape, the attacker's, and the assignment.

    Source: Scheliga 2023, eq. 4 (MMD: mean squared difference, as the values of the
    paper show) and eq. 6 (TRD).
    """
    if not pairs:
        return []
    listed = []
    for index, draw in enumerate(pairs[0][0]):
        values = [_pair(t.draws[index], g.draws[index], o) for t, g, o in pairs]
        known = [v for v in values if v is not None]
        if known and draw.p is not None:
            mmd, trd, right = torch.tensor(known, dtype=torch.double).mean(0).tolist()
            listed.append(
                MaskScore(
                    name=draw.name, kind=draw.kind, p=draw.p, mmd=mmd, trd=trd,
                    accuracy=right,
                )
            )  # fmt: skip
    return listed


def _pair(
    truth: Draw, guess: Draw, order: Sequence[int]
) -> tuple[float, float, float] | None:
    """MMD, TRD and accuracy of one mask; None where nothing was drawn."""
    if not truth.is_mask or truth.value is None or guess.value is None:
        return None
    real = truth.value.detach().double().cpu()
    found = guess.value.detach().double().cpu()
    if found.dim() and len(order) > 1 and found.shape[0] == len(order):
        found = found[list(order)]
    difference = float((real - found).square().mean())
    rate = abs(float(real.mean()) - float(found.clamp_min(0).mean()))
    return difference, rate, float((found.round() == real).double().mean())
