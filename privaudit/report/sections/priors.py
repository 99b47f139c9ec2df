"""What images look like to the attacker: the prior of a guided attack, a control."""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import (
    Block,
    Callout,
    Fact,
    Heading,
    KeyValues,
    Paragraph,
    Section,
    Strip,
)
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AttackRecord, AuditRecord, PriorRecord

CLOSE = 0.05
"""A reconstruction whose SSIM is no further above that of the control shows nothing."""


@section(order=76)
def priors_used(record: AuditRecord, pictures: Pictures) -> Section | None:
    """Per attack with a prior: its card, and what it draws without any features."""
    found = [(a, a.prior) for a in record.attacks if a.prior is not None]
    if not found:
        return None
    blocks: list[Block] = []
    for attack, prior in found:
        blocks += _of_attack(record, attack, prior, pictures)
    return Section(
        "priors",
        "What the attacker knows about images",
        tuple(blocks),
        "An attack with a prior draws only what the prior finds likely. A prior that "
        "knows other images than yours can hide a leak as well as find one.",
        facts.scope(record),
    )


def _of_attack(
    record: AuditRecord, attack: AttackRecord, prior: PriorRecord, pictures: Pictures
) -> list[Block]:
    blocks: list[Block] = [
        Heading(attack.title, attack.evidence.label),
        KeyValues(_card(prior)),
    ]
    if prior.unguided is None:
        return blocks
    figures = [
        pictures.figure(
            prior.unguided,
            "Drawn without any features",
            f"What the prior of {attack.evidence.label} draws by itself",
        )
    ]
    if record.samples:
        first = record.samples[0]
        figures.append(pictures.original(first.image, facts.what(first)))
    blocks.append(Strip(tuple(figures)))
    blocks.append(Paragraph(_control(attack, prior), small=True))
    blocks += _warning(attack, prior)
    return blocks


def _card(prior: PriorRecord) -> tuple[Fact, ...]:
    card = prior.card
    size = f" of {card.size[0]}×{card.size[1]} pixels" if card.size else ""
    images = f"{card.channels} channel(s){size}"
    learnt = f"{card.images:,} images" if card.images is not None else ""
    rows = [
        Fact("Prior", card.name, card.kind, mono=True),
        Fact("Learnt from", card.learnt_from, learnt),
        Fact("Good for", card.good_for),
        Fact("Not for", card.not_for),
        Fact("Draws", images, f"{card.parameters:,} parameters"),
    ]
    if card.seconds is not None and card.steps is not None:
        rows.append(
            Fact(
                "Training",
                f"{card.steps:,} steps, {phrases.seconds(card.seconds)}",
                "" if card.loss is None else f"loss {card.loss:.3f} on held-out images",
            )
        )
    if prior.fit_db is not None:
        own = "" if prior.own_db is None else f"{prior.own_db:.1f} dB on its own kind"
        rows.append(Fact("Knows these images", f"{prior.fit_db:.1f} dB", own))
    return tuple(rows)


def _control(attack: AttackRecord, prior: PriorRecord) -> str:
    if prior.unguided_ssim is None:
        return "The control could not be scored."
    scored = _first_ssim(attack)
    found = "got no score" if scored is None else f"has an SSIM of {scored:.3f}"
    return (
        f"Negative control: without the features the prior draws an image with an SSIM "
        f"of {prior.unguided_ssim:.3f} to the first one; the reconstruction {found}."
    )


def _warning(attack: AttackRecord, prior: PriorRecord) -> list[Block]:
    """The attack says nothing where the features made no difference."""
    scored, alone = _first_ssim(attack), prior.unguided_ssim
    if scored is None or alone is None or scored > alone + CLOSE:
        return []
    return [
        Callout(
            "warning",
            "The features made no difference here",
            f"{attack.evidence.label} comes no closer to the first image than its "
            "prior alone: that is no sign of safety, the prior may not fit.",
            "Give a prior that learnt from such images: `privaudit prior train`.",
        )
    ]


def _first_ssim(attack: AttackRecord) -> float | None:
    scores = attack.evidence.scores.get("ssim", [])
    return scores[0].value if scores else None
