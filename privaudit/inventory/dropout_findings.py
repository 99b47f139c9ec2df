"""What an audit found out about dropout: the truths that practitioners need most."""

from __future__ import annotations

from collections.abc import Sequence

from privaudit.inventory.findings import names_of
from privaudit.inventory.records import Finding, StochasticCall


def dropout_does_not_protect(
    calls: Sequence[StochasticCall], form: str, recovered: int
) -> Finding:
    """The truth that practitioners need most: the mask did not stop the attack."""
    rates = sorted({c.p for c in calls if c.p is not None})
    listed = ", ".join(f"{p:.2g}" for p in rates)
    return Finding(
        code="dropout-no-protection",
        severity="critical",
        where=names_of(calls),
        title="Dropout does not protect this model, and here is why",
        text=f"{len(calls)} dropout call(s) (p = {listed}) were active in the client's "
        f"step, and {recovered} image(s) came back exactly all the same, by: {form}. "
        "A dropout mask multiplies both what a layer passes on and the gradient that "
        "comes back through it. The equations that give the image away hold with the "
        "mask as they hold without it; the attacker never needs to know it.",
        remedy="Do not count dropout as a defense. Aggregate securely over many "
        "clients, add calibrated noise (DP-SGD), or do not share this layer's "
        "gradient.",
    )


def dropout_tells_samples_apart(
    calls: Sequence[StochasticCall], recovered: int, images: int
) -> Finding:
    """Dropout is what made a batch come apart: the opposite of a protection."""
    rates = sorted({c.p for c in calls if c.p is not None})
    listed = ", ".join(f"{p:.2g}" for p in rates)
    return Finding(
        code="dropout-exact-batch",
        severity="critical",
        where=names_of(calls),
        title=f"Dropout made recovery exact: {recovered} of {images} images",
        text="The gradient of a batch is a sum over its images, and a sum hides its "
        f"parts. Dropout (p = {listed}) undoes that: each image has other units "
        "switched off, and where a unit is off that image adds exactly zero. These "
        "zeros tell the images apart. "
        f"{recovered} of the {images} images came back exactly, and recomputing the "
        "whole gradient from them confirms it. More dropout makes this easier, not "
        "harder.",
        remedy="Do not count dropout, or a batch of this size, as a defense. Aggregate "
        "securely over many clients, add calibrated noise (DP-SGD), or do not share "
        "the first layer's gradient.",
    )


def batch_hides_closed_forms(size: int) -> Finding:
    """A batch of many is not the worst case."""
    return Finding(
        code="batch-not-worst-case",
        severity="info",
        where="client.batch_size",
        title="One image a step is the worst case",
        text=f"The images were audited as one step of {size}. Closed forms need a step "
        "of one image; clients with small or uneven batches do make such steps.",
        remedy="Audit with client=Client(batch_size=1) as well.",
    )
