"""What this audit does not cover, and what would make its result wrong."""

from __future__ import annotations

from privaudit.report import facts, phrases
from privaudit.report.blocks import Bullets, Section
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord

_ALWAYS = (
    "The result holds for this model with these weights, these images and this "
    "training step. Another checkpoint or another batch can leak more or less.",
    "Only the attacks listed were tried. An attacker with a better one, more time or "
    "more knowledge can get further.",
    "Only reconstruction of images was tried: not membership inference, not "
    "attribute inference, not extraction from the finished model.",
    "This is a technical test. It is evidence for an assessment and does not replace "
    "one.",
)
_WRONG = (
    "The training step audited is not the one that the client really makes.",
    "The weights or the images differ from those in use; compare the digests below.",
    "The images given are not like those that matter, for example too simple or too "
    "few.",
    "The limits were chosen after the values were known.",
)
_FOR_SPLITS = {
    _ALWAYS[0]: "The result holds for this model with these weights, these images and "
    "this cut. Another checkpoint or another cut can leak more or less.",
    _WRONG[0]: "What the device really sends is not what the model gives at this cut, "
    "for example other preprocessing, another precision, or more than these features.",
}


@section(order=120)
def limitations_of(record: AuditRecord, _: Pictures) -> Section:
    """General limits of the method, then those of this very run."""
    return Section(
        "limitations",
        "Limitations",
        (
            Bullets(
                (*_worded(record, _ALWAYS), *_of_this_run(record)),
                "What the result does not cover",
            ),
            Bullets(
                (*_worded(record, _WRONG), *_wrong_here(record)),
                "What would make this result wrong",
            ),
        ),
    )


def _worded(record: AuditRecord, texts: tuple[str, ...]) -> list[str]:
    if record.exposure == "features":
        texts = tuple(_FOR_SPLITS.get(text, text) for text in texts)
    return [facts.worded(record, text) for text in texts]


def _of_this_run(record: AuditRecord) -> list[str]:
    idle = [
        a.evidence.label
        for a in facts.deciding(record)
        if a.evidence.state in ("skipped", "missing", "failed", "stopped")
    ]
    said = []
    if idle:
        said.append(f"Not carried out to the end: {', '.join(idle)}.")
    if not record.inventory.census:
        said.append("The random draws of the model were not observed.")
    if record.skipped_inputs:
        inputs = phrases.plural(len(record.skipped_inputs), "input")
        said.append(f"{inputs} could not be audited.")
    return said


def _wrong_here(record: AuditRecord) -> list[str]:
    said = []
    if any(s.label_source == "model's own argmax" for s in record.samples):
        said.append(
            "Labels are the model's own guesses; with the true labels the gradient "
            "differs."
        )
    if any(not call.replayable for call in record.inventory.stochastic):
        said.append("Some random draws cannot be replayed, which weakens the attacks.")
    if record.provenance.git_dirty:
        said.append("The code had changes that no revision records.")
    return said
