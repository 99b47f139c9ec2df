"""Where a model was cut, and what leaves the device there."""

from __future__ import annotations

from privaudit.report import phrases
from privaudit.report.blocks import Callout, Fact, KeyValues, Section
from privaudit.report.maker import section
from privaudit.report.pictures import Pictures
from privaudit.result import AuditRecord, SplitRecord

_LAYOUTS = {
    "tokens": "tokens (batch, tokens, channels)",
    "nchw": "a map (batch, channels, height, width)",
    "nhwc": "a map (batch, height, width, channels)",
    "vector": "a vector (batch, channels)",
}


@section(order=35)
def where_it_is_cut(record: AuditRecord, _: Pictures) -> Section | None:
    """The cut, its features, what the device computes; None for gradients."""
    split = record.split
    if split is None:
        return None
    values, height = record.inventory.input_shape[0], record.inventory.input_shape[1:]
    image = values * height[0] * height[1]
    sent = 1
    for size in split.shape:
        sent *= size
    rows = (
        Fact("Cut", split.name, split.place, mono=True),
        Fact(
            "Sent for one image",
            f"{sent:,} values, {split.bytes_per_image:,} bytes",
            f"{sent / image:.2f} times as many values as the image has",
        ),
        Fact("Layout", _LAYOUTS[split.layout], f"read from {split.layout_source}"),
        *_tokens(split),
        Fact("Computed on the device", _flops(split), "for one image"),
        Fact("Needs nothing else", _complete(split)),
    )
    blocks = (KeyValues(rows), *_doubts(split))
    return Section(
        "split",
        "Where the model is cut",
        blocks,
        "What runs on the device, and what the server gets.",
    )


def _tokens(split: SplitRecord) -> tuple[Fact, ...]:
    facts: tuple[Fact, ...] = ()
    if split.layout == "tokens":
        facts = (Fact("Tokens before the patches", str(split.prefix_tokens)),)
    if split.grid is not None:
        rows, columns = split.grid
        facts += (Fact("Grid", f"{rows} × {columns}"),)
    return facts


def _flops(split: SplitRecord) -> str:
    if split.client_flops is None:
        return "not counted"
    return f"{split.client_flops / 1e6:,.1f} million operations"


def _complete(split: SplitRecord) -> str:
    if split.complete is None:
        return "not checked"
    if split.complete:
        return "yes: the server gives the same output from these features alone"
    return "no: other values pass beside the cut"


def _doubts(split: SplitRecord) -> tuple[Callout, ...]:
    said: tuple[Callout, ...] = ()
    if split.complete is False:
        said = (
            Callout(
                "warning",
                "More leaves the device than was attacked",
                "The rest of the model does not give the same output from these "
                "features alone: a real server gets more, and can do more with it.",
            ),
        )
    if not split.layout_certain:
        said += (
            Callout(
                "warning",
                "The layout is a guess by shape",
                phrases.sentence(
                    "nothing in the model states it; pass Split(..., layout=, "
                    "prefix_tokens=, grid=) to be sure"
                ),
            ),
        )
    return said
