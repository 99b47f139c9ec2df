"""What shows of defenses in gradients: statistics that detections are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from privaudit.defenses._traces import Difference, apart, lattice_bits
from privaudit.defenses.base import GradientEvidence

_ROUND = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.5, 8.0)
"""What bounds are usually set to, times a power of ten."""
_SMALL = 8
"""Parameters of fewer entries say nothing about a whole gradient."""
Gradient = Mapping[str, Tensor]


def joined(gradient: Gradient) -> Tensor:
    """All entries as one vector."""
    return torch.cat([g.detach().double().flatten() for g in gradient.values()])


def scattered_zeros(gradient: Gradient) -> float:
    """Share of zeros among entries whose row and column are not zero altogether.

    Dead units make whole rows zero, black pixels whole columns: those are no defense.
    """
    zero = total = 0
    for value in gradient.values():
        if value.numel() < _SMALL or not bool(value.any()):
            continue
        there = value.detach() != 0
        if value.dim() > 1:
            flat = there.flatten(1)
            flat = flat[flat.any(1)][:, flat.any(0)]
        else:
            flat = there
        zero += int((~flat).sum())
        total += flat.numel()
    return zero / total if total else 0.0


def all_zeros(gradient: Gradient) -> float:
    """Share of the entries that are zero."""
    values = joined(gradient) if gradient else torch.empty(0)
    return float((values == 0).double().mean()) if len(values) else 0.0


def one_size_only(gradient: Gradient) -> float:
    """Share of the entries in parameters whose entries all have one magnitude."""
    alike = total = 0
    for value in gradient.values():
        sizes = value.detach().abs()
        sizes = sizes[sizes > 0]
        if value.numel() < _SMALL or len(sizes) < 2:
            continue
        total += value.numel()
        if float(sizes.max() - sizes.min()) <= 1e-6 * float(sizes.max()):
            alike += value.numel()
    return alike / total if total else 0.0


def on_lattice(gradient: Gradient) -> tuple[float, float]:
    """Share of the entries in parameters that sit on levels, and their median bits."""
    bits, held, total = [], 0, 0
    for value in gradient.values():
        if value.numel() < 64 or not bool(value.any()):
            continue
        total += value.numel()
        found = lattice_bits(value)
        if found is not None:
            held += value.numel()
            bits.append(found)
    if not total or not bits:
        return 0.0, 0.0
    return held / total, sorted(bits)[len(bits) // 2]


def norms(sent: Sequence[Gradient]) -> list[float]:
    """Of each client's whole gradient."""
    return [float(joined(g).norm()) for g in sent]


def shared_bound(found: Sequence[float]) -> float | None:
    """The largest norm, where at least two clients have it to four digits."""
    highest = max(found)
    alike = [n for n in found if abs(n - highest) <= 1e-4 * highest]
    return highest if len(alike) > 1 and highest > 0 else None


def round_bound(norm: float) -> float | None:
    """The round number that a norm is to five digits; None: it is none."""
    if not 0 < norm < math.inf:
        return None
    power = 10.0 ** math.floor(math.log10(norm))
    for mantissa in (*_ROUND, 10.0):
        if abs(norm - mantissa * power) <= 1e-5 * norm:
            return mantissa * power
    return None


def noise(seen: GradientEvidence) -> Difference | None:
    """How the first client's step differs when it is sent again."""
    if seen.again is None:
        return None
    names = [n for n in seen.sent[0] if n in seen.again]
    one = joined({n: seen.sent[0][n] for n in names})
    return apart(one, joined({n: seen.again[n] for n in names}))


def empty_columns(gradient: Gradient, model: nn.Module) -> float:
    """Share of zero columns in the gradient of the last linear layer that was sent.

    0 where other parameters have zeros at live units too: then it is no defense of one
    layer. Units that are silent altogether, as dropped ones, say nothing of that.
    """
    last = ""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and f"{name}.weight" in gradient:
            last = f"{name}.weight"
    if not last or not bool(gradient[last].any()):
        return 0.0
    others = {n: g for n, g in gradient.items() if n != last}
    if scattered_zeros(others) > 0.05:
        return 0.0
    return float((gradient[last].detach() == 0).all(0).double().mean())
