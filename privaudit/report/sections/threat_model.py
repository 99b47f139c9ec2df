"""Who attacks, what they see, what they were given."""

from __future__ import annotations

from privaudit.report import phrases
from privaudit.report.blocks import Bullets, Fact, KeyValues, Lists, Section
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord


@section(order=30)
def who_attacks(record: AuditRecord, _: Pictures) -> Section:
    """The threat model that every number of the page holds for."""
    model = record.threat_model
    rows = (
        Fact("Attacker", phrases.sentence(model.attacker)),
        Fact("Exposure", phrases.sentence(model.exposure)),
        Fact("Client", _client(record)),
        Fact("Labels", _labels(record)),
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
    images = (
        "all images together"
        if size is None
        else phrases.plural(size, "image") + " each"
    )
    mode = (
        "in train mode"
        if client.mode == "train"
        else "with the modes as they were given"
    )
    rate = "" if client.lr is None else f", learning rate {client.lr:g}"
    steps = phrases.plural(client.local_steps, "local step")
    return f"{steps} of {client.optimizer.upper()}, {images}, {mode}{rate}."


def _labels(record: AuditRecord) -> str:
    if record.config.knowledge.labels == "known":
        return "Given to the attacker."
    return "Read off the gradient by the attacker."
