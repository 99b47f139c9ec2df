"""First screen: the verdict, the worst image, its pair, and one plain sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Block,
    Callout,
    Fact,
    Figure,
    Gauge,
    Heading,
    Hero,
    Section,
    Tone,
)
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.report.sections.tokens import sequences
from privaudit.result import AuditRecord

if TYPE_CHECKING:
    from privaudit.verdict import Worst

TONES: dict[str, Tone] = {
    "leaks": "critical",
    "no leak found": "good",
    "inconclusive": "warning",
    "not run": "plain",
}

_ONE = 1.00001
"""A perfect score, rounding errors included."""
_WITHIN: dict[str, Tone] = {"no leak found": "good"}
"""Without an answer a value within its limit is no good news."""


@section(order=10)
def first_screen_of(record: AuditRecord, pictures: Pictures) -> Section:
    """Everything that a reader who stops here must have seen."""
    pair = _pair(record, pictures)
    blocks: list[Block] = []
    warning = _personal_data(record, pictures)
    if warning is not None:
        blocks.append(warning)
    blocks.append(_hero(record, pair))
    if record.kind == "tokens":
        blocks += _worst_tokens(record)
    return Section("verdict", "Verdict", tuple(blocks), first_screen=True)


def _hero(record: AuditRecord, pair: tuple[Figure, ...]) -> Hero:
    verdict = record.verdict
    worst = facts.headline_worst(verdict)
    return Hero(
        word=verdict.word,
        strength=f"{verdict.strength} evidence" if verdict.strength else "",
        tone=TONES[verdict.word],
        subject=_subject(record),
        sentence=_sentence(record),
        facts=_facts(record, worst),
        gauge=_gauge(worst, verdict.word),
        pair=pair,
        line=verdict.line,
        scope=facts.scope(record),
    )


def _subject(record: AuditRecord) -> str:
    images = phrases.plural(record.verdict.samples, facts.noun(record))
    done = "given, none audited" if record.verdict.word == "not run" else "audited"
    if record.partial is not None:
        done = f"given, {record.partial.done} audited before it was interrupted"
    return f"{record.inventory.model.rpartition('.')[2]} · {images} {done}"


def _sentence(record: AuditRecord) -> str:
    verdict = record.verdict
    images = phrases.plural(verdict.samples, facts.noun(record))
    if verdict.word == "leaks":
        return _leak_sentence(record)
    if verdict.word == "no leak found":
        return (
            f"With the attacks tried here, none of the {images} could be rebuilt "
            "beyond the limits set beforehand; other attacks or images may give "
            "another answer."
        )
    if verdict.word == "inconclusive":
        return (
            "This audit gives no answer: something that the verdict needs did not "
            "work. Treat the model as not tested, and see below what to do."
        )
    return "No attack was carried out, so this page says nothing about the model."


def _leak_sentence(record: AuditRecord) -> str:
    if not record.truth_known:
        return (
            "From what a client sent, an attacker can rebuild an image that gives the "
            "whole gradient again. The original was not given, so none is shown "
            "beside it."
        )
    found = facts.leakiest(record)
    beyond = sum(one.leaks for one in found)
    if record.kind == "tokens":
        return _token_sentence(len(found), beyond)
    if not beyond:
        return (
            f"What {_shared(record)} gives away more about its images than the limits "
            "set beforehand allow."
        )
    count = (
        "the image audited"
        if len(found) == 1
        else f"{beyond} of the {len(found)} images "
        + ("audited" if record.partial is None else "given")
    )
    return (
        f"From what {_shared(record)}, an attacker can rebuild "
        f"{count} more closely than the limits set beforehand allow."
    )


def _shared(record: AuditRecord) -> str:
    if record.exposure == "features":
        return "a device sends"
    return "a client shares in one training step"


def _worst_tokens(record: AuditRecord) -> list[Block]:
    """What was held and found of the sample that the headline names."""
    found = facts.leakiest(record)
    worst = facts.headline_worst(record.verdict)
    named = [one for one in found if worst is not None and one.position == worst.sample]
    shown = (named or found)[:1]
    if not shown:
        return []
    title = f"What was read, of sample {shown[0].sample.index}"
    return [Heading(title), sequences(record, shown)]


def _token_sentence(samples: int, beyond: int) -> str:
    count = (
        "the sample audited"
        if samples == 1
        else f"{beyond} of {samples} samples audited"
    )
    return (
        "From what a client shares in one training step, an attacker can read the "
        f"token ids of {count}, more of them than the limits set beforehand allow."
    )


def _facts(record: AuditRecord, worst: Worst | None) -> tuple[Fact, ...]:
    if worst is None:
        return ()
    side = "beyond the limit" if worst.leaks else "within the limit"
    distance = abs(worst.margin)
    return (
        Fact(
            f"Worst {facts.noun(record)}",
            _worst_image(record, worst),
            f"by {worst.attack}",
        ),
        Fact(phrases.metric(worst.metric), phrases.number(worst.value)),
        Fact("Limit", phrases.number(worst.limit)),
        Fact("Margin", phrases.number(distance), side),
    )


def _worst_image(record: AuditRecord, worst: Worst) -> str:
    if worst.sample is None or worst.sample >= len(record.samples):
        return f"all {facts.noun(record)}s"
    return f"{facts.noun(record).capitalize()} {record.samples[worst.sample].index}"


def _gauge(worst: Worst | None, word: str) -> Gauge | None:
    if worst is None or not (0 <= worst.value <= _ONE and 0 <= worst.limit <= 1):
        return None
    name = phrases.metric(worst.metric)
    side = "beyond" if worst.leaks else "within"
    return Gauge(
        value=min(100.0, round(100 * worst.value, 2)),
        limit=round(100 * worst.limit, 2),
        title=f"{name} {phrases.number(worst.value)} on a scale from 0 to 1, {side} "
        f"the limit {phrases.number(worst.limit)}",
        tone="critical" if worst.leaks else _WITHIN.get(word, "plain"),
    )


def _pair(record: AuditRecord, pictures: Pictures) -> tuple[Figure, ...]:
    if record.kind == "tokens":
        return ()
    found = {one.position: one for one in facts.leakiest(record)}
    worst = facts.headline_worst(record.verdict)
    position = worst.sample if worst is not None else None
    if position not in found:
        position = next(iter(found), None)
    if position is None:
        return ()
    attack = found[position].attack
    if worst is not None and worst.sample == position:
        named = [a for a in record.attacks if a.evidence.label == worst.attack]
        attack = named[0] if named else attack
    if attack is None:
        return ()
    sample = found[position].sample
    label = attack.evidence.label
    blurred = ", blurred" if record.redaction == "all" else ""
    return (
        pictures.original(sample.image, facts.what(sample)),
        pictures.figure(
            facts.image_name(attack.images, position),
            f"Reconstruction{blurred}",
            f"Reconstruction of {facts.what(sample)} by {label}{blurred}",
        ),
    )


def _personal_data(record: AuditRecord, pictures: Pictures) -> Callout | None:
    if record.redaction == "all":
        return None
    if any(a.tokens or a.leaked_ids for a in record.attacks):
        return Callout(
            tone="warning",
            label="Personal data",
            title="This page shows token ids read out of training data",
            text="With the model's tokenizer they are its text. Handle it like the "
            "data itself.",
            remedy='Save with redact="all" before passing it on.',
        )
    names = [name for a in record.attacks for name in a.images]
    if not any(pictures.get(name) for name in names):
        return None
    also = (
        " and the originals they are compared with"
        if record.redaction == "none"
        else "; the originals are blurred, but a close reconstruction shows the same"
    )
    return Callout(
        tone="warning",
        label="Personal data",
        title="This page shows pictures rebuilt from "
        + ("training data" if record.exposure == "gradient" else "what a device sent"),
        text=f"It contains reconstructions{also}. Handle it like the data itself.",
        remedy='Save with redact="all" before passing it on.',
    )
