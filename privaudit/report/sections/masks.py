"""How well the dropout masks of the client were found, call by call."""

from __future__ import annotations

from statistics import fmean

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Bar,
    Bars,
    Block,
    Bullets,
    Column,
    Details,
    Fact,
    Heading,
    KeyValues,
    Section,
    Table,
    table,
)
from privaudit.report.curves import DIAGNOSTIC
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AttackRecord, AuditRecord, MaskScore

_MEANINGS = (
    "MMD: mean squared difference of the mask found and the client's mask. 0 is the "
    "same mask; a mask drawn blindly at the same rate has 2p(1 − p).",
    "TRD: difference of the two dropout rates. 0 is the same rate.",
    "Accuracy: share of entries that are right after rounding. Keeping every entry "
    "already gets 1 − p of them right.",
)
_NUMBERS = (
    Column("MMD", numeric=True),
    Column("MMD if blind", numeric=True),
    Column("TRD", numeric=True),
    Column("Accuracy", numeric=True),
)
_FEW = 6
"""So many calls are listed at once; more are averaged by kind first."""
_WIDTH, _LEFT, _RIGHT, _TOP, _BASE = 960, 60, 946, 16, 176


@section(order=77)
def mask_recovery(record: AuditRecord, _: Pictures) -> Section | None:
    """Per attack that estimated masks: means, one bar per call, and the table."""
    found = [a for a in record.attacks if a.masks or a.mask_mmd is not None]
    if not found:
        return None
    blocks: list[Block] = [Bullets(_MEANINGS, "What the numbers mean")]
    for i, attack in enumerate(found):
        blocks += _of_attack(attack, i)
    return Section(
        "masks",
        "Mask recovery",
        tuple(blocks),
        "Dropout protects only as long as its masks stay unknown: how well each was "
        "found, over all clients.",
        facts.scope(record),
    )


def _of_attack(attack: AttackRecord, position: int) -> list[Block]:
    tag = DIAGNOSTIC if attack.evidence.diagnostic else ""
    blocks: list[Block] = [
        Heading(attack.title, attack.evidence.label, tag),
        KeyValues(
            (
                Fact("Mean MMD", phrases.number(attack.mask_mmd), "over all calls"),
                Fact("Mean TRD", phrases.number(attack.mask_trd), "over all calls"),
            )
        ),
    ]
    if attack.masks:
        blocks.append(_bars(attack, position))
        if len(attack.masks) > _FEW:
            unfolded = Details(f"All {len(attack.masks):,} calls", (_table(attack),))
            blocks += [_kinds(attack), unfolded]
        else:
            blocks.append(_table(attack))
    return blocks


def _kinds(attack: AttackRecord) -> Table:
    """Means over calls of one kind and rate."""
    groups: dict[tuple[str, float], list[MaskScore]] = {}
    for mask in attack.masks:
        groups.setdefault((mask.kind, mask.p), []).append(mask)
    columns = (
        Column("Kind"),
        Column("p", numeric=True),
        Column("Calls", numeric=True),
        *_NUMBERS,
    )
    rows = [
        (
            kind,
            f"{p:g}",
            f"{len(some):,}",
            phrases.number(fmean(m.mmd for m in some)),
            phrases.number(_chance(some[0])),
            phrases.number(fmean(m.trd for m in some)),
            phrases.share(fmean(m.accuracy for m in some)),
        )
        for (kind, p), some in groups.items()
    ]
    label = attack.evidence.label
    return table(f"Masks found by {label}, means by kind and p", columns, rows)


def _chance(mask: MaskScore) -> float:
    """MMD of two independent masks of the same rate."""
    return 2 * mask.p * (1 - mask.p)


def _bars(attack: AttackRecord, position: int) -> Bars:
    masks = attack.masks
    high = max(0.05, *(max(m.mmd, _chance(m)) for m in masks)) * 1.05
    step = (_RIGHT - _LEFT) / len(masks)

    def y(value: float) -> float:
        return round(_BASE - value / high * (_BASE - _TOP), 1)

    better = sum(m.mmd < _chance(m) for m in masks)
    count = phrases.plural(len(masks), "mask")
    return Bars(
        anchor=f"masks-{position}",
        title=f"MMD of {count} found by {attack.evidence.label}",
        description=f"One bar per dropout call, in call order; the line across each is "
        f"a mask drawn blindly. {better} of {len(masks)} are better than blind. "
        "The values are in the table below.",
        width=_WIDTH,
        height=_BASE + 30,
        left=_LEFT,
        right=_RIGHT,
        base=_BASE,
        bar=round(min(0.7 * step, 48), 1),
        bars=tuple(
            Bar(round(_LEFT + (i + 0.5) * step, 1), y(m.mmd), y(_chance(m)), _name(m))
            for i, m in enumerate(masks)
        ),
        rows=tuple(
            (y(high / 1.05 * k / 3), f"{high / 1.05 * k / 3:.2f}") for k in range(4)
        ),
        axis="Dropout calls, first to last",
        legend="bar: MMD of the mask found · line: a mask drawn blindly",
    )


def _name(mask: MaskScore) -> str:
    return (
        f"{mask.name}: MMD {phrases.number(mask.mmd)}, "
        f"blind {phrases.number(_chance(mask))}"
    )


def _table(attack: AttackRecord) -> Table:
    columns = (
        Column("Call", mono=True),
        Column("Kind"),
        Column("p", numeric=True),
        *_NUMBERS,
    )
    rows = [
        (
            m.name,
            m.kind,
            f"{m.p:g}",
            phrases.number(m.mmd),
            phrases.number(_chance(m)),
            phrases.number(m.trd),
            phrases.share(m.accuracy),
        )
        for m in attack.masks
    ]
    return table(f"Masks found by {attack.evidence.label}", columns, rows)
