"""Per attack: how it ended, what it cost, what it scored, which forms applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Details,
    Fact,
    Heading,
    KeyValues,
    Paragraph,
    Section,
    Table,
    Tone,
    table,
)
from privaudit.report.curves import DIAGNOSTIC
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AttackRecord, AuditRecord

_SHOWN = {"images": "pictures", "tokens": "copies"}
_TONES: dict[str, Tone] = {
    "exact": "critical",
    "converged": "info",
    "failed": "warning",
    "stopped": "warning",
    "missing": "warning",
}


@section(order=70)
def attacks_run(record: AuditRecord, _: Pictures) -> Section | None:
    """One overview, then each attack with its scores, forms and settings."""
    if not record.attacks:
        return None
    blocks: list[Block] = [_overview(record.attacks), _words(record)]
    for attack in record.attacks:
        blocks += _one(record, attack)
    return Section(
        "attacks",
        "Attacks",
        tuple(blocks),
        "All attacks of this audit, those that did not run included.",
        facts.scope(record),
    )


def _overview(attacks: list[AttackRecord]) -> Table:
    columns = (
        Column("Attack", mono=True),
        Column("State"),
        Column("Needed"),
        Column("Time", numeric=True),
        Column("Iterations", numeric=True),
        Column("Optimised", numeric=True),
        Column("Loss", numeric=True),
        Column("Residual", numeric=True),
        Column("Labels right", numeric=True),
    )
    caption = (
        "How each attack ended. Needed: for the verdict. Iterations: of all restarts. "
        "Optimised: values of one client that the search moved"
    )
    return table(caption, columns, [_overview_row(a) for a in attacks])


def _overview_row(attack: AttackRecord) -> tuple[Cell | str, ...]:
    evidence = attack.evidence
    needed = "yes" if evidence.required and not evidence.diagnostic else "no"
    reason = ": ".join(part for part in (evidence.skip, evidence.reason) if part)
    notes = [DIAGNOSTIC] * evidence.diagnostic + [reason] * bool(reason)
    state = Cell(
        evidence.state, _TONES.get(evidence.state, "plain"), phrases.dotted(notes)
    )
    return (evidence.label, state, needed, *_cost(attack))


def _cost(attack: AttackRecord) -> tuple[Cell, ...]:
    """What it took and how far it came; a dash for what does not apply."""
    if not _ran(attack):
        return (Cell(phrases.DASH),) * 6
    tries = phrases.plural(attack.restarts, "restart") if attack.restarts else ""
    moved = phrases.DASH if attack.optimised is None else f"{attack.optimised:,}"
    start = attack.loss_start
    right = attack.label_accuracy
    return (
        Cell(phrases.seconds(attack.seconds)),
        Cell(f"{attack.iterations:,}", note=tries),
        Cell(moved),
        Cell(
            phrases.number(attack.loss_final),
            note="" if start is None else f"from {phrases.number(start)}",
        ),
        Cell(_residual(attack)),
        Cell(phrases.DASH if right is None else phrases.share(right)),
    )


def _ran(attack: AttackRecord) -> bool:
    return attack.evidence.state not in ("skipped", "missing")


def _residual(attack: AttackRecord) -> str:
    known = [o.residual for o in attack.outcomes if o.residual is not None]
    if not known:
        return phrases.DASH
    worst = phrases.number(max(known))
    return worst if len(known) == 1 else f"≤ {worst}"


def _words(record: AuditRecord) -> Bullets:
    seen = dict.fromkeys(a.evidence.state for a in record.attacks)
    items = tuple(
        facts.worded(record, f"{state.capitalize()}: {phrases.STATES[state]}.")
        for state in seen
    )
    return Bullets(items, "What the states mean")


def _one(record: AuditRecord, attack: AttackRecord) -> list[Block]:
    tag = DIAGNOSTIC if attack.evidence.diagnostic else ""
    blocks: list[Block] = [Heading(attack.title, attack.evidence.label, tag)]
    if attack.summary:
        blocks.append(Paragraph(phrases.sentence(attack.summary)))
    if _ran(attack):
        blocks.append(KeyValues(_facts(record, attack)))
    else:
        blocks.append(Paragraph(_why_not(attack)))
    if attack.evidence.scores:
        blocks.append(_scores(record, attack))
    forms = _forms(attack)
    if forms is not None:
        blocks.append(forms)
    settings = _settings(attack)
    if settings is not None:
        blocks.append(Details("All settings of this attack", (settings,)))
    return blocks


def _why_not(attack: AttackRecord) -> str:
    evidence = attack.evidence
    reason = evidence.reason or evidence.skip or "no reason given"
    return phrases.sentence(f"not run: {reason}")


def _facts(record: AuditRecord, attack: AttackRecord) -> tuple[Fact, ...]:
    outcomes = attack.outcomes
    candidates = (
        (f"Per {facts.noun(record)}", _counts(o.state for o in outcomes)),
        ("Recovered by", _counts(o.form for o in outcomes if o.form)),
        ("Remarks", _counts(o.note for o in outcomes if o.note)),
        ("Search", _search(attack)),
        ("Matching loss", _losses(attack)),
        ("Labels read off right", _labels(attack)),
        ("Defense in place", attack.defense or ""),
        ("Countermeasures", ", ".join(attack.countermeasures)),
        ("Ran on", f"{attack.device}, seed {attack.seed}"),
        ("Settings given", _given(attack)),
    )
    return tuple(Fact(name, value) for name, value in candidates if value)


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{word} × {n:,}" for word, n in Counter(words).most_common())


def _search(attack: AttackRecord) -> str:
    if attack.optimised is None:
        return ""
    values = phrases.plural(attack.optimised, "value")
    steps = phrases.plural(attack.iterations, "iteration")
    tries = phrases.plural(attack.restarts, "restart")
    told = attack.path.removeprefix("one client").removeprefix(", ")
    together = f", {told}" if told else ""
    return f"{values} optimised, {steps}, {tries}{together}"


def _labels(attack: AttackRecord) -> str:
    right = attack.label_accuracy
    return "" if right is None else phrases.share(right)


def _losses(attack: AttackRecord) -> str:
    named = (
        ("start", attack.loss_start),
        ("final", attack.loss_final),
        ("at the truth", attack.loss_truth),
    )
    return ", ".join(f"{n} {phrases.number(v)}" for n, v in named if v is not None)


def _given(attack: AttackRecord) -> str:
    given = attack.settings_given
    return ", ".join(f"{k} = {phrases.setting(v)}" for k, v in given.items()) or "none"


def _scores(record: AuditRecord, attack: AttackRecord) -> Table:
    columns = (
        Column("Metric"),
        Column("Values", numeric=True),
        Column("Smallest", numeric=True),
        Column("Mean", numeric=True),
        Column("Largest", numeric=True),
        Column(f"Identical {_SHOWN[record.kind]}", numeric=True),
        Column("Without a value", numeric=True),
    )
    rows = []
    for metric, scores in attack.evidence.scores.items():
        values = [s.value for s in scores if s.value is not None]
        same = sum(s.note == "identical" for s in scores)
        empty = sum(s.value is None and s.note != "identical" for s in scores)
        mean = sum(values) / len(values) if values else None
        ends = (min(values), max(values)) if values else (None, None)
        numbers = [phrases.number(v) for v in (ends[0], mean, ends[1])]
        rows.append(
            (phrases.metric(metric), f"{len(scores)}", *numbers, f"{same}", f"{empty}")
        )
    return table(f"Scores of {attack.evidence.label}", columns, rows)


def _forms(attack: AttackRecord) -> Table | None:
    """Per form how often it applied, and the reasons why not, equal ones counted."""
    notes = [note for outcome in attack.outcomes for note in outcome.forms]
    if not notes:
        return None
    rows = []
    for form in dict.fromkeys(note.form for note in notes):
        mine = [note for note in notes if note.form == form]
        applied = sum(note.applied for note in mine)
        reasons = Counter(
            note.reason or "no reason given" for note in mine if not note.applied
        )
        why = "; ".join(f"{reason} (× {n:,})" for reason, n in reasons.most_common())
        rows.append((form, f"{applied:,} of {len(mine):,}", why or phrases.DASH))
    columns = (Column("Form"), Column("Applied", numeric=True), Column("Why not"))
    return table(f"Forms of {attack.evidence.label}", columns, rows)


def _settings(attack: AttackRecord) -> Table | None:
    if not attack.settings:
        return None
    given = attack.settings_given
    rows = [
        (name, phrases.setting(value), "given" if name in given else "default")
        for name, value in attack.settings.items()
    ]
    columns = (
        Column("Setting", mono=True),
        Column("Value", mono=True),
        Column("Source"),
    )
    return table(f"Settings of {attack.evidence.label}", columns, rows)
