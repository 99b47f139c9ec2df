"""Success rate over the threshold: how many images an attack got, for every limit."""

from __future__ import annotations

from privaudit.report import curves, facts, phrases
from privaudit.report.blocks import (
    Column,
    Curve,
    Curves,
    Details,
    Section,
    Table,
    table,
)
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AttackRecord, AuditRecord, SuccessRecord

FEWEST = 4
"""Images below which a share says little."""
_WIDTH, _LEFT, _RIGHT, _TOP, _BASE, _KEY = 960, 60, 946, 16, 276, 26


@section(order=85)
def success_rates(record: AuditRecord, _: Pictures) -> Section | None:
    """One curve per attack that counts, with the limit marked."""
    metric = facts.main_metric(record)
    found = [
        (a, s)
        for a in facts.deciding(record)
        for s in a.success
        if s.metric == metric and s.images >= FEWEST
    ]
    if not found:
        return None
    listed = Details("The same as a table", (_table(metric, found),))
    return Section(
        "success",
        "Success rate of each attack",
        (_drawn(record, metric, found), listed),
        "Which share of the images came out better than a threshold, for every "
        "threshold: the limit in force is one of them.",
        facts.scope(record),
    )


def _drawn(
    record: AuditRecord, metric: str, found: list[tuple[AttackRecord, SuccessRecord]]
) -> Curves:
    def x(threshold: float) -> float:
        return round(_LEFT + threshold * (_RIGHT - _LEFT), 1)

    def y(rate: float) -> float:
        return round(_BASE - rate * (_BASE - _TOP), 1)

    lines = tuple(
        Curve(
            style=i % curves.STYLES,
            points=" ".join(
                f"{x(t)},{y(r)}"
                for t, r in zip(one.thresholds, one.rates, strict=True)
                if 0 <= t <= 1
            ),
            end=(x(one.thresholds[-1]), y(one.rates[-1])),
            arrived=attack.evidence.state in ("exact", "converged"),
            name=attack.evidence.label,
            note=attack.evidence.state,
            key=_BASE + 72 + i * _KEY,
        )
        for i, (attack, one) in enumerate(found)
    )
    limit = facts.limit_in_force(record, metric)
    quarters = [k / 4 for k in range(5)]
    named = phrases.metric(metric)
    return Curves(
        anchor="success-rates",
        title=f"Success rate over {named}",
        description=_description(metric, found),
        width=_WIDTH,
        height=_BASE + 72 + len(lines) * _KEY - 8,
        left=_LEFT,
        right=_RIGHT,
        base=_BASE,
        curves=lines,
        truths=(),
        rows=tuple((y(q), phrases.share(q)) for q in quarters),
        columns=tuple((x(q), f"{q:g}") for q in quarters),
        axis=f"{named} that counts as success",
        scale="share of images beyond it",
        limits=()
        if limit is None or not 0 <= limit <= 1
        else ((x(limit), f"limit {phrases.number(limit)}"),),
    )


def _description(metric: str, found: list[tuple[AttackRecord, SuccessRecord]]) -> str:
    half = "; ".join(
        f"{a.evidence.label}: {phrases.share(_at(s, 0.5))}" for a, s in found
    )
    return (
        f"Share of images with {phrases.metric(metric)} beyond .5: {half}. The values "
        "are in the table below."
    )


def _at(one: SuccessRecord, threshold: float) -> float:
    """The rate at the threshold that is nearest."""
    apart = [abs(t - threshold) for t in one.thresholds]
    return one.rates[apart.index(min(apart))]


def _table(metric: str, found: list[tuple[AttackRecord, SuccessRecord]]) -> Table:
    columns = (
        Column(f"{phrases.metric(metric)} beyond", numeric=True),
        *(Column(a.evidence.label, numeric=True) for a, _ in found),
    )
    shown = [t for t in found[0][1].thresholds if round(t * 20) % 2 == 0]
    rows = [(f"{t:.2f}", *(phrases.share(_at(s, t)) for _, s in found)) for t in shown]
    return table("Share of images beyond a threshold", columns, rows)
