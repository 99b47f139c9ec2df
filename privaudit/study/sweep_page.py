"""A sweep as JSON, as Markdown, and as a page: leak and cost per cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from privaudit.report import phrases
from privaudit.report.blocks import (
    Bar,
    Bars,
    Block,
    Bullets,
    Callout,
    Chart,
    Column,
    Fact,
    Heading,
    KeyValues,
    Mark,
    Rule,
    Section,
    Strip,
    Table,
    table,
)
from privaudit.report.files import write_file
from privaudit.report.page import render_study
from privaudit.report.pictures import Pictures
from privaudit.study.store import Arrays
from privaudit.study.sweep import SweepResult, SweepRow

TITLE = "Where can the model be cut?"
_WIDTH, _LEFT, _RIGHT, _TOP, _BASE = 960, 60, 946, 20, 260
_COST_BASE = 176
DRAWN = 2
"""Images per cut."""
_LONGEST = 14
"""Characters of a name that fit below a bar."""
NOTES = (
    "The leak at a cut is that of the strongest attack tried, on the images given. "
    '"Inconclusive" is not "safe": an attack was missing or did not come to its end.',
    "A deeper cut need not leak less, and never leaks nothing: class, pose and colour "
    "can be read from features from which no image can be rebuilt.",
    "Bytes are those of the features in the type that the model computes them in, "
    "without compression. Operations are counted once, for one image.",
)


def write(result: SweepResult, pictures: Mapping[str, Arrays], folder: Path) -> None:
    """``report.json``, ``report.md`` and ``report.html`` into ``folder``.

    Raises:
        ReportError: The place cannot be written.
    """
    write_file(folder / "report.json", result.model_dump_json(indent=2).encode())
    write_file(folder / "report.md", markdown(result).encode())
    write_file(folder / "report.html", page(result, pictures).encode())


def markdown(result: SweepResult) -> str:
    """The table, the two sentences, and the notes."""
    lines = [f"# {TITLE}", "", *answer(result), ""]
    lines.append(f"| {' | '.join(c.title for c in _COLUMNS)} |")
    lines.append("|" + " --- |" * len(_COLUMNS))
    lines += [f"| {' | '.join(_row(result, r))} |" for r in result.rows]
    return "\n".join([*lines, "", *(f"- {n}" for n in NOTES), ""])


def page(result: SweepResult, pictures: Mapping[str, Arrays]) -> str:
    """One self-contained HTML page."""
    scored = [r for r in result.rows if r.ssim_worst is not None]
    known = [r for r in result.rows if r.split is not None]
    leak: list[Block] = [_leaks(result, scored)] if scored else []
    leak.append(_table(result))
    sections = [_top(result), Section("leak", "Leak per cut", tuple(leak))]
    if known:
        cost: list[Block] = [Heading("Bytes sent"), _bytes(result, known)]
        if any(r.split and r.split.client_flops for r in known):
            cost.append(Heading("Million operations on the device"))
            cost.append(_flops(result, known))
        lead = "What the device sends, and what it computes, for one image."
        sections.append(Section("cost", "Cost per cut", tuple(cost), lead))
    strips = [b for r in result.rows for b in _strip(r, pictures.get(r.name, {}))]
    if strips:
        lead = "Of each cut the strongest attack's reconstructions of the first images."
        sections.append(Section("pictures", "Pictures", tuple(strips), lead))
    sections.append(Section("notes", "How to read this", (Bullets(NOTES),)))
    return render_study(
        TITLE, sections, started=result.started, version=result.privaudit
    )


def answer(result: SweepResult) -> list[str]:
    """Where is the safest cut, and what does it cost? In plain words."""
    said = []
    lowest, cheapest = result.lowest, result.cheapest_unbroken
    leaking = [r for r in result.rows if r.word == "leaks"]
    if leaking and len(leaking) == len(result.rows):
        said.append("At every cut examined images could be rebuilt beyond the limit.")
    if cheapest is not None and cheapest.word == "no leak found":
        said.append(
            f"The cheapest cut at which no leak was found is {cheapest.name}. "
            f"{_price(result, cheapest)}"
        )
    elif cheapest is not None:
        said.append(
            "No cut was cleared. The cheapest at which nothing was rebuilt beyond the "
            f"limit is {cheapest.name}, but its audit is {cheapest.word}: treat it as "
            f"not tested. {_price(result, cheapest)}"
        )
    if lowest is not None and lowest is not cheapest:
        said.append(
            f"The lowest worst SSIM, {phrases.number(lowest.ssim_worst)}, is at "
            f"{lowest.name}. {_price(result, lowest)}"
        )
    if not result.complete:
        said.append("Some cuts got no verdict; see the table.")
    return said or ["No cut was audited."]


def _price(result: SweepResult, row: SweepRow) -> str:
    split = row.split
    if split is None:
        return ""
    share = split.bytes_per_image / max(1, result.image_bytes)
    text = (
        f"There the device sends {split.bytes_per_image:,} bytes for one image, "
        f"{share:.{1 if share >= 0.1 else 3}f} times the image itself"
    )
    if split.client_flops is not None and result.total_flops:
        part = split.client_flops / result.total_flops
        text += f", and does {part:.0%} of the model's operations"
    return text + "."


def _top(result: SweepResult) -> Section:
    facts = (
        Fact("Model", result.model),
        Fact("Images", f"{result.images:,}"),
        Fact("Cuts", f"{len(result.rows):,}"),
        Fact("SSIM limit", phrases.number(result.ssim_limit)),
    )
    blocks: list[Block] = [Heading(TITLE), KeyValues(facts)]
    blocks.append(Bullets(tuple(answer(result))))
    if not result.complete:
        blocks.append(
            Callout(
                "warning", "Note", "Not the whole sweep",
                "Some cuts got no verdict.",
                "Start the same sweep again with the same folder to go on.",
            )
        )  # fmt: skip
    return Section("summary", "Summary", tuple(blocks), first_screen=True)


_COLUMNS = (
    Column("Cut", mono=True),
    Column("Verdict"),
    Column("Worst SSIM", numeric=True),
    Column("Mean SSIM", numeric=True),
    Column("Re-identified", numeric=True),
    Column("By"),
    Column("Sent, bytes", numeric=True),
    Column("Device, of all operations", numeric=True),
    Column("Note"),
)


def _table(result: SweepResult) -> Table:
    return table(
        "Every cut, in the order asked for",
        _COLUMNS,
        [_row(result, r) for r in result.rows],
    )


def _row(result: SweepResult, row: SweepRow) -> tuple[str, ...]:
    split = row.split
    flops = None if split is None else split.client_flops
    share = (
        phrases.DASH
        if flops is None or not result.total_flops
        else f"{flops / result.total_flops:.1%}"
    )
    note = row.error or "; ".join(row.causes[:2] if row.word != "leaks" else [])
    return (
        row.name,
        row.word,
        phrases.number(row.ssim_worst),
        phrases.number(row.ssim_mean),
        phrases.DASH
        if row.re_identification is None
        else f"{row.re_identification:.0%}",
        row.attack or phrases.DASH,
        phrases.DASH if split is None else f"{split.bytes_per_image:,}",
        share,
        note,
    )


def _places(count: int) -> Callable[[int], float]:
    step = (_RIGHT - _LEFT) / max(1, count)
    return lambda i: round(_LEFT + (i + 0.5) * step, 1)


def _leaks(result: SweepResult, rows: Sequence[SweepRow]) -> Chart:
    x = _places(len(rows))

    def y(value: float) -> float:
        return round(_BASE - min(1.0, max(0.0, value)) * (_BASE - _TOP), 1)

    marks = tuple(
        Mark(
            x(i),
            y(r.ssim_worst or 0.0),
            r.word == "leaks",
            f"{r.name}: worst SSIM {phrases.number(r.ssim_worst)}, {r.word}",
        )
        for i, r in enumerate(rows)
    )
    rules = [Rule(y(v / 4), f"{v / 4:.2f}", "grid") for v in range(5)]
    if result.ssim_limit is not None:
        text = f"limit {phrases.number(result.ssim_limit)}"
        rules.append(Rule(y(result.ssim_limit), text, "limit"))
    beyond = sum(m.beyond for m in marks)
    return Chart(
        anchor="leak-per-cut",
        title="Worst SSIM per cut",
        description=f"One mark per cut, shallow to deep as asked for; {beyond} of "
        f"{len(marks)} leak. Squares leak, circles do not. The values are in the "
        "table below.",
        width=_WIDTH,
        height=_BASE + 44,
        left=_LEFT,
        right=_RIGHT,
        base=_BASE,
        radius=6.0,
        marks=marks,
        rules=tuple(rules),
        ticks=tuple((x(i), _short(r.name)) for i, r in enumerate(rows)),
        axis="Cut",
    )


def _bytes(result: SweepResult, rows: Sequence[SweepRow]) -> Bars:
    sizes = [float(r.split.bytes_per_image) for r in rows if r.split]
    return _bars(
        "bytes-per-cut",
        "Bytes that leave the device, one image",
        rows,
        sizes,
        compared=float(result.image_bytes),
        legend="bar: features sent · line: the image itself, 8 bits a value",
        unit="bytes",
    )


def _flops(result: SweepResult, rows: Sequence[SweepRow]) -> Bars:
    counts = [float((r.split and r.split.client_flops) or 0) / 1e6 for r in rows]
    return _bars(
        "operations-per-cut",
        "Million operations on the device, one image",
        rows,
        counts,
        compared=(result.total_flops or 0) / 1e6,
        legend="bar: the device's part · line: the whole model",
        unit="million operations",
    )


def _bars(
    anchor: str,
    title: str,
    rows: Sequence[SweepRow],
    values: Sequence[float],
    *,
    compared: float,
    legend: str,
    unit: str,
) -> Bars:
    x, high = _places(len(rows)), max(*values, compared, 1e-9) * 1.05

    def y(value: float) -> float:
        return round(_COST_BASE - value / high * (_COST_BASE - _TOP), 1)

    return Bars(
        anchor=anchor,
        title=title,
        description=f"One bar per cut, in the order asked for. {legend}. The values "
        "are in the table above.",
        width=_WIDTH,
        height=_COST_BASE + 50,
        left=_LEFT,
        right=_RIGHT,
        base=_COST_BASE,
        bar=round(min(0.6 * (_RIGHT - _LEFT) / max(1, len(rows)), 48), 1),
        bars=tuple(
            Bar(x(i), y(v), y(compared), f"{r.name}: {v:,.0f} {unit}")
            for i, (r, v) in enumerate(zip(rows, values, strict=True))
        ),
        rows=tuple(
            (y(high / 1.05 * k / 3), f"{high / 1.05 * k / 3:,.0f}") for k in range(4)
        ),
        axis="Cut",
        legend=legend,
        ticks=tuple((x(i), _short(r.name)) for i, r in enumerate(rows)),
    )


def _short(name: str) -> str:
    """The end of a long name: that is where names differ."""
    return name if len(name) <= _LONGEST else "…" + name[1 - _LONGEST :]


def _strip(row: SweepRow, arrays: Arrays) -> list[Block]:
    """First images of a cut, each beside what was made of it."""
    from torch import from_numpy

    from privaudit._pixels import to_png

    if "original" not in arrays or "reconstruction" not in arrays:
        return []
    files: dict[str, bytes] = {}
    for kind in ("original", "reconstruction"):
        for i, value in enumerate(arrays[kind]):
            files[f"{kind}-{i}"] = to_png(from_numpy(value))
    pictures = Pictures(files, "none")
    figures = []
    for i in range(min(DRAWN, len(arrays["original"]))):
        first = pictures.figure(f"original-{i}", f"Original {i}", f"Original {i}")
        what = f"Image {i} as rebuilt from {row.name}"
        figures += [first, pictures.figure(f"reconstruction-{i}", row.attack, what)]
    note = f"worst SSIM {phrases.number(row.ssim_worst)}, {row.word}"
    return [Heading(row.name, note), Strip(tuple(figures))]
