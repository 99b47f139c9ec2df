"""Who attacks, what they see, what they were given."""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import Bullets, Fact, KeyValues, Lists, Section
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord


@section(order=30)
def who_attacks(record: AuditRecord, _: Pictures) -> Section:
    """The threat model that every number of the page holds for."""
    model = record.threat_model
    rows: tuple[Fact, ...] = (
        Fact("Attacker", phrases.sentence(model.attacker)),
        Fact("Exposure", phrases.sentence(model.exposure)),
    )
    if record.exposure == "gradient":
        rows += (
            Fact("Client", _client(record)),
            Fact("Labels", _labels(record)),
            Fact("Dropout masks", _masks(record)),
        )
    lists = tuple(
        Bullets(tuple(map(phrases.sentence, items)), title)
        for title, items in (
            ("Sees", model.sees),
            ("Knows", model.knows),
            ("Does not know", model.does_not_know),
        )
        if items
    )
    return Section(
        "threat-model",
        "Threat model",
        (KeyValues(rows), Lists(lists)),
        "Every number on this page holds for this attacker and no other.",
    )


def _client(record: AuditRecord) -> str:
    client = record.config.client
    size = client.batch_size
    noun = facts.noun(record)
    images = (
        f"all {noun}s together" + (" in equal parts" if client.local_steps > 1 else "")
        if size is None
        else phrases.plural(size, noun) + " each"
    )
    mode = (
        "in train mode"
        if client.mode == "train"
        else "with the modes as they were given"
    )
    precision = f", under autocast to {client.autocast}" if client.autocast else ""
    rate = "" if client.lr is None else f", learning rate {client.lr:g}"
    rate += f", momentum {client.momentum:g}" if client.momentum else ""
    steps = phrases.plural(client.local_steps, "local step")
    name = {"sgd": "SGD", "adamw": "AdamW"}[client.optimizer]
    return f"{steps} of {name}, {images}, {mode}{precision}{rate}."


def _masks(record: AuditRecord) -> str:
    """In which mode the attacks took the client's masks."""
    if not record.inventory.census:
        return "Whether the client draws any was not observed."
    if not any(call.active for call in record.inventory.stochastic):
        return "The client draws none."
    given = [a.evidence.label for a in record.attacks if a.evidence.diagnostic]
    told = f" Given only to {', '.join(given)}, which never decides." if given else ""
    return (
        "Unknown to the attacker, who reads them off the gradient, optimises them or "
        f"leaves them out, as each attack says.{told}"
    )


def _labels(record: AuditRecord) -> str:
    labels = facts.labels_are(record)
    if labels == "known":
        return "Given to the attacker."
    if labels == "unknown":
        return "Not given to the attacker, and not needed."
    if labels == "joint":
        return "Optimised by the attacker, together with the images."
    return "Read off the gradient by the attacker."
