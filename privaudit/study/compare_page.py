"""A comparison as JSON, as Markdown, and as a page: leak and cost per defense."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privaudit.errors import ReportError
from privaudit.report import phrases
from privaudit.report.blocks import (
    Block,
    Bullets,
    Callout,
    Column,
    Details,
    Fact,
    Figure,
    Heading,
    KeyValues,
    Pair,
    Section,
    Strip,
    Table,
    Tradeoff,
    table,
)
from privaudit.report.files import make_folder, write_file
from privaudit.report.page import render_study
from privaudit.report.pictures import Pictures
from privaudit.study.compare_result import (
    NONE,
    Attacked,
    ComparisonResult,
    DefenseRow,
    answer,
    sentence,
)
from privaudit.study.rates_figure import rates_section
from privaudit.study.store import Arrays

TITLE = "What does each defense buy, and what does it cost?"
DRAWN = 2
"""Images per defense."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BASE = 960, 400, 74, 930, 42, 340
_NEAR = 16.0
_AROUND = (
    (0, -12), (0, 23), (-17, 5), (18, 5), (-15, -10), (16, -10), (-15, 21), (16, 21),
    (0, -29), (0, 40), (-34, 5), (35, 5),
)  # fmt: skip
"""Where a number may stand beside its mark."""
NOTES = (
    "Each defense is attacked twice: by an attacker who takes what was sent for what "
    "the model gives, and by one who knows of the defense and answers it. Only the "
    "second says what a defense is worth.",
    '"Inconclusive" is not "safe": an attack was missing or did not come to its end. '
    "A stronger attacker may exist than those tried here.",
    "SSIM is that of the strongest attack tried, on the images given. Cost is measured "
    "in this run, with and without the defense in turn: compare rows, not machines.",
)


def write(result: ComparisonResult, pictures: Mapping[str, Arrays], path: Path) -> Path:
    """``.html``, ``.json`` or ``.md``; or all three into a folder.

    Raises:
        ReportError: Another suffix, or the place cannot be written.
    """
    suffix = path.suffix.lower()
    made: dict[str, Callable[[], str]] = {
        ".json": lambda: result.model_dump_json(indent=2),
        ".md": lambda: markdown(result),
        ".html": lambda: page(result, pictures),
    }
    if suffix in made:
        make_folder(path.parent)
        write_file(path, made[suffix]().encode())
        return path
    if suffix:
        raise ReportError(
            f"save({str(path)!r})",
            expected=".html, .json, .md, or a folder (no suffix)",
            got=f"suffix {suffix!r}",
            hint="Change the suffix, or leave it out to get a folder.",
        )
    make_folder(path)
    for kind, make in made.items():
        write_file(path / f"report{kind}", make().encode())
    return path


def markdown(result: ComparisonResult) -> str:
    """The answer, the table, a sentence per defense, and the notes."""
    lines = [f"# {TITLE}", "", *answer(result), ""]
    lines.append(f"| {' | '.join(c.title for c in _COLUMNS)} |")
    lines.append("|" + " --- |" * len(_COLUMNS))
    lines += [f"| {' | '.join(_row(i, r))} |" for i, r in _numbered(result)]
    lines += ["", *(f"- {sentence(r, result)}" for r in result.rows)]
    return "\n".join([*lines, "", *(f"- {n}" for n in NOTES), ""])


def page(result: ComparisonResult, pictures: Mapping[str, Arrays]) -> str:
    """One self-contained HTML page."""
    sections = [_top(result)]
    chart = _chart(result)
    trade: list[Block] = [] if chart is None else [chart]
    trade += [
        _table(result, "What attackers got", _LEAK),
        _table(result, "What it costs, and what answers it", _PRICE),
    ]
    sections.append(Section("trade-off", "Leak against worth", tuple(trade)))
    rates = rates_section(result.rows, result.paper)
    sections += [] if rates is None else [rates]
    said = tuple(sentence(r, result) for r in result.rows)
    sections.append(Section("each", "Each defense in a sentence", (Bullets(said),)))
    strips = [
        b for i, r in _numbered(result) for b in _strip(i, r, pictures.get(r.label, {}))
    ]
    if strips:
        lead = "Of each defense the strongest attack's reconstructions, by both."
        sections.append(Section("pictures", "Pictures", tuple(strips), lead))
    sections.append(_about(result))
    sections.append(Section("notes", "How to read this", (Bullets(NOTES),)))
    return render_study(
        TITLE, sections, started=result.started, version=result.privaudit
    )


def _numbered(result: ComparisonResult) -> Iterator[tuple[int, DefenseRow]]:
    yield from enumerate(result.rows, 1)


def _top(result: ComparisonResult) -> Section:
    facts = (
        Fact("Model", result.model),
        Fact("What is sent", result.place),
        Fact("Images", f"{result.images:,}"),
        Fact("Attacks", ", ".join(result.attacks)),
        Fact("Utility", result.utility or "none was given"),
        Fact("SSIM limit", phrases.number(result.ssim_limit)),
    )
    blocks: list[Block] = [Heading(TITLE), KeyValues(facts)]
    blocks.append(Bullets(tuple(answer(result))))
    if not result.complete:
        blocks.append(
            Callout(
                "warning", "Note", "Not the whole comparison",
                "Some rows are not whole; the table says which.",
                "Start the same comparison again with the same folder to go on.",
            )
        )  # fmt: skip
    return Section("summary", "Summary", tuple(blocks), first_screen=True)


_COLUMNS = (
    Column("#", numeric=True),
    Column("Defense", mono=True),
    Column("Worst SSIM, naive", numeric=True),
    Column("Worst SSIM, adaptive", numeric=True),
    Column("Mean SSIM, naive", numeric=True),
    Column("Mean SSIM, adaptive", numeric=True),
    Column("Re-identified, naive", numeric=True),
    Column("Re-identified, adaptive", numeric=True),
    Column("Verdict"),
    Column("Answered by"),
    Column("Utility", numeric=True),
    Column("Added, ms", numeric=True),
    Column("Sent, bytes", numeric=True),
    Column("Control"),
    Column("Note"),
)


_LEAK = ("#", "Defense", *(c.title for c in _COLUMNS[2:9]))
_PRICE = ("#", "Defense", *(c.title for c in _COLUMNS[9:]))
"""The columns of each table of the page: all of them side by side are too wide."""


def _table(result: ComparisonResult, caption: str, titles: Sequence[str]) -> Table:
    kept = [i for i, c in enumerate(_COLUMNS) if c.title in titles]
    return table(
        f"{caption}, in the order asked for",
        [_COLUMNS[i] for i in kept],
        [[_row(n, r)[i] for i in kept] for n, r in _numbered(result)],
    )


def _row(number: int, row: DefenseRow) -> tuple[str, ...]:
    naive, adaptive = row.naive, row.adaptive
    answered = "" if adaptive is None else ", ".join(adaptive.countermeasures)
    if adaptive is not None and not row.answered and row.label != NONE:
        answered = (
            "attacks see it as it is" if row.known_to_attacks else "nothing known here"
        )
    return (
        str(number),
        row.label,
        phrases.number(_worst(naive)),
        phrases.number(_worst(adaptive)),
        phrases.number(naive.ssim_mean if naive else None),
        phrases.number(adaptive.ssim_mean if adaptive else None),
        _rate(naive),
        _rate(adaptive),
        _verdict(row),
        answered or phrases.DASH,
        phrases.DASH if row.utility is None else f"{row.utility:.3f}",
        phrases.DASH if row.cost_ms is None else f"{row.cost_ms:.2f}",
        phrases.DASH if row.bytes_sent is None else f"{row.bytes_sent:,}",
        _control(row),
        "; ".join([*row.notes, *([row.error] if row.error else [])]),
    )


def _worst(one: Attacked | None) -> float | None:
    return None if one is None else one.ssim_worst


def _rate(one: Attacked | None) -> str:
    if one is None or one.re_identification is None:
        return phrases.DASH
    return f"{one.re_identification:.0%}"


def _verdict(row: DefenseRow) -> str:
    if row.naive is None and row.adaptive is None:
        return "not run"
    if row.stops_naive_only:
        return "leaks (naive stopped)"
    words = {a.word for a in (row.naive, row.adaptive) if a is not None}
    order = ("leaks", "inconclusive", "not run", "no leak found")
    return next((w for w in order if w in words), "not run")


def _control(row: DefenseRow) -> str:
    passed = [a.control_passed for a in (row.naive, row.adaptive) if a is not None]
    if not passed or None in passed:
        return "not tried"
    return "passed" if all(passed) else "failed"


def _chart(result: ComparisonResult) -> Tradeoff | None:
    """Worst SSIM to the right; upwards the utility, or the rows where there is none."""
    rows = [
        (i, r) for i, r in _numbered(result)
        if r.naive and r.adaptive
        and r.naive.ssim_worst is not None and r.adaptive.ssim_worst is not None
    ]  # fmt: skip
    if not rows:
        return None
    worth = all(r.utility is not None for _, r in rows)
    values = [r.utility or 0.0 for _, r in rows] if worth else []
    low, high = _span(values) if worth else (0.0, float(len(rows) + 1))
    lows = [min(0.0, *(_ssims(r)[k] for _, r in rows)) for k in (0, 1)]
    left = min(lows)

    def x(value: float) -> float:
        return round(_LEFT + (value - left) / (1 - left) * (_RIGHT - _LEFT), 1)

    def y(value: float) -> float:
        return round(_BASE - (value - low) / (high - low) * (_BASE - _TOP), 1)

    pairs: list[Pair] = []
    for place, (number, row) in enumerate(rows):
        level = y((row.utility or 0.0) if worth else len(rows) - place)
        naive, adaptive = _ssims(row)
        pairs.append(
            Pair(
                (x(naive), level), (x(adaptive), level), str(number),
                _free(pairs, x(adaptive), level),
                _title(row, result),
            )
        )  # fmt: skip
    limit = result.ssim_limit
    grid = [low + k * (high - low) / 4 for k in range(5)]
    return Tradeoff(
        anchor="leak-against-worth",
        title="Worst SSIM against utility" if worth else "Worst SSIM of each defense",
        description="Two marks a defense, joined: the circle is the attacker who does "
        "not know of it, the square the one who does. The values are in the table.",
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        base=_BASE,
        pairs=tuple(pairs),
        rows=tuple((y(v), f"{v:.3f}") for v in grid) if worth else (),
        columns=tuple((x(k / 4), f"{k / 4:.2f}") for k in range(5)),
        across="worst SSIM (no unit; 1: the image itself) →",
        upwards=f"{result.utility or 'utility'} (higher is better) ↑" if worth else "",
        limit=None if limit is None else (x(limit), f"limit {phrases.number(limit)}"),
    )


def _ssims(row: DefenseRow) -> tuple[float, float]:
    naive, adaptive = row.naive, row.adaptive
    return (
        (naive.ssim_worst if naive else None) or 0.0,
        (adaptive.ssim_worst if adaptive else None) or 0.0,
    )


def _span(values: Sequence[float]) -> tuple[float, float]:
    """A little more than the values take, so that no mark sits on the frame."""
    low, high = min(values), max(values)
    room = max(0.1 * (high - low), 0.01)
    return low - room, high + room


def _free(pairs: Sequence[Pair], x: float, y: float) -> tuple[float, float]:
    """The first place around a mark that no label has taken yet."""
    taken = [p.label for p in pairs]
    for across, up in _AROUND:
        place = (round(x + across, 1), round(y + up, 1))
        if not any(
            abs(place[0] - a) < _NEAR and abs(place[1] - b) < _NEAR for a, b in taken
        ):
            return place
    return round(x, 1), round(y, 1)


def _title(row: DefenseRow, result: ComparisonResult) -> str:
    naive, adaptive = _ssims(row)
    worth = "" if row.utility is None else f", {result.utility} {row.utility:.3f}"
    return f"{row.label}: worst SSIM {naive:.2f} naive, {adaptive:.2f} adaptive{worth}"


def _strip(number: int, row: DefenseRow, arrays: Arrays) -> list[Block]:
    """First images behind a defense, each beside what both attackers made of it."""
    from torch import from_numpy

    from privaudit._pixels import to_png

    if "original" not in arrays:
        return []
    kinds = [k for k in ("original", "naive", "adaptive") if k in arrays]
    files: dict[str, bytes] = {}
    for kind in kinds:
        for i, value in enumerate(arrays[kind][:DRAWN]):
            files[f"{kind}-{i}"] = to_png(from_numpy(value))
    shown = Pictures(files, "none")
    figures: list[Figure] = []
    for i in range(min(DRAWN, len(arrays["original"]))):
        for kind in kinds:
            caption = f"Original {i}" if kind == "original" else kind
            what = f"Image {i}, {kind}, defense {row.label}"
            figures.append(shown.figure(f"{kind}-{i}", caption, what))
    naive, adaptive = row.naive, row.adaptive
    note = (
        f"worst SSIM {phrases.number(_worst(naive))} naive "
        f"({(naive and naive.attack) or phrases.DASH}), "
        f"{phrases.number(_worst(adaptive))} adaptive "
        f"({(adaptive and adaptive.attack) or phrases.DASH})"
    )
    return [Heading(f"{number}. {row.label}", note), Strip(tuple(figures), small=True)]


def _about(result: ComparisonResult) -> Section:
    """Of each row: source, settings, what it leaves open, what was seen and done."""
    blocks: list[Block] = []
    for number, row in _numbered(result):
        done: Sequence[Any] = [
            *row.does_not_protect,
            *(f"Seen by who is not told: {d.evidence}" for d in row.detections),
            *(n for a in (row.adaptive,) if a for n in a.notes),
            *([row.utility_note] if row.utility_note else []),
        ]
        facts = [
            Fact("Defense", ", then ".join(row.titles)),
            Fact("Source", ", ".join(row.sources) or phrases.DASH),
            Fact("Settings", str(row.settings), mono=True),
        ]
        if row.fit_seconds:
            facts.append(Fact("Training", f"{row.fit_seconds:.0f} s"))
        blocks.append(
            Details(
                f"{number}. {row.label}",
                (KeyValues(tuple(facts)), Bullets(tuple(map(str, done)))),
            )
        )
    lead = "Source, settings, what it does not protect against, what was done about it."
    return Section("defenses", "The defenses", tuple(blocks), lead)
