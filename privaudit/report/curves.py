"""Losses of several searches as lines in one axis, both of its scales logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from privaudit.report import phrases
from privaudit.report.blocks import Curve, Curves, Truth
from privaudit.result import AttackRecord, CurvePoint

_WIDTH, _PLOT = 960, 300
_LEFT, _RIGHT, _TOP = 72, 946, 16
_KEY = 26
_MOST_POINTS = 240
_MOST_DECADES = 6
STYLES = 6
"""How many lines look different; the style sheet has one rule for each."""
DIAGNOSTIC = "diagnostic: uses what no attacker has"
_ARRIVED = ("exact", "converged")


def drawable(attack: AttackRecord) -> list[CurvePoint]:
    """The looks that a logarithmic scale can show."""
    return [p for p in attack.curve if 0 < p.loss < math.inf and p.iteration >= 0]


def thinned(points: Sequence[CurvePoint], most: int) -> list[CurvePoint]:
    """At most ``most`` points, evenly spaced over log(iteration), ends included."""
    if len(points) <= most:
        return list(points)
    last = math.log1p(points[-1].iteration)
    kept = {0: points[0], len(points) - 1: points[-1]}
    wanted = iter(range(1, most - 1))
    mark = next(wanted, None)
    for i, point in enumerate(points):
        reached = math.log1p(point.iteration) * (most - 1)
        if mark is not None and reached >= mark * last:
            kept[i] = point
            while mark is not None and reached >= mark * last:
                mark = next(wanted, None)
    return [kept[i] for i in sorted(kept)]


def draw(attacks: Sequence[AttackRecord]) -> Curves:
    """All searches in one picture; each must have something that can be drawn."""
    points = [drawable(a) for a in attacks]
    truths = [a.loss_truth for a in attacks if a.loss_truth is not None]
    values = [p.loss for some in points for p in some]
    low, high = _decades([*values, *(t for t in truths if 0 < t < math.inf)])
    last = max(p.iteration for some in points for p in some)
    base = _TOP + _PLOT

    def x(iteration: int) -> float:
        part = math.log1p(iteration) / math.log1p(max(last, 1))
        return round(_LEFT + part * (_RIGHT - _LEFT), 1)

    def y(loss: float) -> float:
        return round(base - (math.log10(loss) - low) / (high - low) * _PLOT, 1)

    curves = tuple(
        Curve(
            style=i % STYLES,
            points=" ".join(
                f"{x(p.iteration)},{y(p.loss)}" for p in thinned(some, _MOST_POINTS)
            ),
            end=(x(some[-1].iteration), y(some[-1].loss)),
            arrived=attack.evidence.state in _ARRIVED,
            name=attack.evidence.label,
            note=_note(attack),
            key=base + 72 + i * _KEY,
        )
        for i, (attack, some) in enumerate(zip(attacks, points, strict=True))
    )
    return Curves(
        anchor="losses",
        title=f"Losses of {phrases.plural(len(attacks), 'search', 'searches')}",
        description=_description(attacks),
        width=_WIDTH,
        height=base + 72 + len(curves) * _KEY - 8,
        left=_LEFT,
        right=_RIGHT,
        base=base,
        curves=curves,
        truths=tuple(_truths(attacks, y)),
        rows=tuple((y(10.0**k), _power(k)) for k in _marks(low, high)),
        columns=tuple((x(i), f"{i:,}") for i in _milestones(last)),
        axis="Iteration (logarithmic)",
        scale="Loss (logarithmic)",
    )


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)) + 1e-9)
    high = math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + 1)


def _marks(low: int, high: int) -> range:
    return range(low, high + 1, -(-(high - low) // _MOST_DECADES))


def _power(exponent: int) -> str:
    if -3 <= exponent <= 3:
        return f"{10.0**exponent:g}"
    return f"1e{exponent}".replace("-", "−")


def _milestones(last: int) -> list[int]:
    """0, 10, 100 … and the last, unless two would touch."""
    marks = [0, *(10**k for k in range(1, 10) if 10**k < last)]
    if last > 0 and math.log1p(last) - math.log1p(marks[-1]) < 0.08 * math.log1p(last):
        marks.pop()
    return [*marks, last] if last > 0 else marks


def _truths(
    attacks: Sequence[AttackRecord], y: Callable[[float], float]
) -> list[Truth]:
    found = sorted(
        (y(a.loss_truth), i % STYLES, a.evidence.label)
        for i, a in enumerate(attacks)
        if a.loss_truth is not None and 0 < a.loss_truth < math.inf
    )
    truths = [Truth(at, style, f"at the truth: {name}") for at, style, name in found]
    for one, other in pairwise(range(len(truths))):
        if truths[other].y - truths[one].y < 14:
            joined = f"{truths[one].text}, {found[other][2]}"
            truths[other] = Truth(truths[other].y, truths[other].style, joined)
            truths[one] = Truth(truths[one].y, truths[one].style, "")
    return truths


def _note(attack: AttackRecord) -> str:
    parts: list[str] = [attack.evidence.state]
    if attack.loss_final is not None:
        parts.append(f"final {phrases.number(attack.loss_final)}")
    if attack.loss_truth is not None:
        parts.append(f"at the truth {phrases.number(attack.loss_truth)}")
    if attack.evidence.diagnostic:
        parts.append(DIAGNOSTIC)
    return " · ".join(parts)


def _description(attacks: Sequence[AttackRecord]) -> str:
    ends = "; ".join(f"{a.evidence.label}: {_note(a)}" for a in attacks)
    return (
        f"{ends}. Both scales are logarithmic. A filled end means exact or converged, "
        "a hollow one anything else; dotted lines are losses at the truth above 0. "
        "The values are in the table below."
    )
