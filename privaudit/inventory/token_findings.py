"""What an audit on token ids has to say beside its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from privaudit.inventory.records import Finding, StochasticCall


def dropout_does_not_hide_tokens(calls: Sequence[StochasticCall], form: str) -> Finding:
    """The mask did not keep the ids of the step from showing."""
    rates = sorted({c.p for c in calls if c.p is not None})
    listed = ", ".join(f"{p:.2g}" for p in rates)
    return Finding(
        code="dropout-no-protection",
        severity="critical",
        where=", ".join(c.name for c in calls[:3]),
        title="Dropout does not hide the tokens",
        text=f"{len(calls)} dropout call(s) (p = {listed}) were active in the client's "
        f"step, and its ids came back all the same, by: {form}. An embedding has a "
        "gradient in the rows of its ids and in no others, whatever is dropped behind "
        "it.",
        remedy="Do not count dropout as a defense. Aggregate securely over many "
        "clients, add calibrated noise (DP-SGD) to all rows, or freeze the embedding.",
    )


def order_needs_one(size: int) -> Finding:
    """A batch of many sequences is not the worst case."""
    return Finding(
        code="batch-not-worst-case",
        severity="info",
        where="client.batch_size",
        title="One sequence a step is the worst case",
        text=f"The sequences were audited as steps of {size}. The set of ids shows for "
        "any size; the forms that find their order need a step of one.",
        remedy="Audit with client=Client(batch_size=1) as well.",
    )
