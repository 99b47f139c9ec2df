"""Dropout rate against accuracy, the attack of the literature, and our worst case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privaudit.report.blocks import Block, Curve, Curves, Paragraph, Section
from privaudit.study.compare_result import DefenseRow

RATE = "dropout_rate"
USUAL = "inverting_gradients"
_WIDTH, _LEFT, _RIGHT, _TOP, _BASE = 960, 72, 930, 20, 300
_KEY = 26
Points = Sequence[tuple[float, float]]


def rates_of(rows: Sequence[DefenseRow]) -> list[tuple[float, DefenseRow]]:
    """Rows that only set a dropout rate, by rate."""
    found = [
        (float(r.settings[0]["p"]), r)
        for r in rows
        if len(r.settings) == 1 and r.label.startswith(RATE)
    ]
    return sorted(found, key=lambda pair: pair[0])


def rates_section(
    rows: Sequence[DefenseRow], paper: Mapping[float, float] | None = None
) -> Section | None:
    """The figure, where at least two rates were measured.

    Args:
        rows: Of a comparison.
        paper: SSIM of the paper's IG by rate, where the model is the paper's.
    """
    found = rates_of(rows)
    if len(found) < 2:
        return None
    lines: list[tuple[str, str, Points]] = [
        ("accuracy after federated training", "utility", _utility(found)),
        ("SSIM of inverting_gradients", "the usual attack", _usual(found)),
        ("worst SSIM of all attacks", "masks unknown", _worst(found)),
    ]
    if paper:
        known = sorted(paper.items())
        lines.insert(2, ("SSIM of IG in the paper", "Scheliga 2023", known))
    drawn = [line for line in lines if len(line[2]) > 1]
    blocks: list[Block] = [_figure(drawn)]
    blocks.append(
        Paragraph(
            "Dropout takes the usual attack away, and accuracy with it; it does not "
            "take the image away from an attacker who reads the masks off the gradient."
            if _exposed(found)
            else "What each rate leaves to the strongest attack tried, and its price."
        )
    )
    return Section("rates", "Dropout rate, accuracy and leak", tuple(blocks))


def _exposed(found: Sequence[tuple[float, DefenseRow]]) -> bool:
    worst = dict(_worst(found))
    return all(worst.get(p, 0.0) > 0.9 for p, _ in found)


def _utility(found: Sequence[tuple[float, DefenseRow]]) -> Points:
    return [(p, r.utility) for p, r in found if r.utility is not None]


def _usual(found: Sequence[tuple[float, DefenseRow]]) -> Points:
    known = [(p, r.naive.by_attack.get(USUAL)) for p, r in found if r.naive]
    return [(p, value) for p, value in known if value is not None]


def _worst(found: Sequence[tuple[float, DefenseRow]]) -> Points:
    known = [(p, r.worst.ssim_worst) for p, r in found if r.worst]
    return [(p, value) for p, value in known if value is not None]


def _figure(lines: Sequence[tuple[str, str, Points]]) -> Curves:
    rates = sorted({p for _, _, points in lines for p, _ in points})
    first, last = rates[0], rates[-1]

    def x(rate: float) -> float:
        return round(_LEFT + (rate - first) / (last - first) * (_RIGHT - _LEFT), 1)

    def y(value: float) -> float:
        return round(_BASE - min(1.0, max(0.0, value)) * (_BASE - _TOP), 1)

    curves = tuple(
        Curve(
            style=number,
            points=" ".join(f"{x(p)},{y(v)}" for p, v in points),
            end=(x(points[-1][0]), y(points[-1][1])),
            arrived=True,
            name=name,
            note=f"{note}: {', '.join(f'{v:.2f}' for _, v in points)}",
            key=_BASE + 72 + number * _KEY,
        )
        for number, (name, note, points) in enumerate(lines)
    )
    return Curves(
        anchor="dropout-rates",
        title="Accuracy and SSIM by dropout rate",
        description="; ".join(f"{c.name}: {c.note}" for c in curves),
        width=_WIDTH,
        height=_BASE + 72 + len(curves) * _KEY - 8,
        left=_LEFT,
        right=_RIGHT,
        base=_BASE,
        curves=curves,
        truths=(),
        rows=tuple((y(k / 4), f"{k / 4:.2f}") for k in range(5)),
        columns=tuple((x(p), f"{p:g}") for p in rates),
        axis="Dropout rate p (probability)",
        scale="Accuracy (share) and SSIM (no unit)",
    )
