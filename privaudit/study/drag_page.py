"""Lei 2025, ours and the paper's: as Markdown, and as a page with pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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
    Section,
    Strip,
    Table,
    table,
)
from privaudit.report.files import write_file
from privaudit.report.page import render_study
from privaudit.report.phrases import plural
from privaudit.report.pictures import Pictures
from privaudit.study.dia_result import NOT_RUN
from privaudit.study.drag_paper import PaperRow, title
from privaudit.study.drag_result import DragResult, RowResult
from privaudit.study.keys import Cell
from privaudit.study.reproduce_drag import Reproduction

TITLE = "Guided diffusion, ours and the paper's"
SHOWN = 2
"""Images of each cut."""
_HEAD = (
    "Cut", "Attack", "Images",
    "MS-SSIM", "paper", "difference", "LPIPS", "paper", "difference", "Ended",
)  # fmt: skip
_MORE = ("Cut", "Attack", "DINO", "paper's, not comparable", "SSIM")
_COST = (
    "Cut", "Attack", "Iterations", "Seconds per image", "paper", "difference",
    "On", "Note",
)  # fmt: skip
_ACCURACY = ("Model", "Defense", "Accuracy", "paper", "Note")
_WORDS = {"Cut", "Attack", "Ended", "On", "Model", "Defense", "Note"}


def write(result: DragResult, made: Reproduction, folder: Path) -> None:
    """``report.json``, ``report.md`` and ``report.html`` into ``folder``.

    Raises:
        ReportError: The place cannot be written.
    """
    write_file(folder / "report.json", result.model_dump_json(indent=2).encode())
    write_file(folder / "report.md", markdown(result).encode())
    write_file(folder / "report.html", page(result, made).encode())


def markdown(result: DragResult) -> str:
    """One table per table of the paper, and what to know about them."""
    lines = [f"# {TITLE}", "", f"Paper: {result.paper}.", "", summary(result), ""]
    for name, rows in _tables(result):
        lines += [f"## {title(name)}", ""]
        for head, cells in _parts(name, rows):
            lines += [*_lines(head, cells), ""]
    if missing := _off(result):
        lines += ["## What is missing", "", *(f"- {n}" for n in missing), ""]
    return "\n".join([*lines, "## Notes", "", *(f"- {n}" for n in result.notes), ""])


def page(result: DragResult, made: Reproduction) -> str:
    """The same as one self-contained HTML page, with pictures of the first images."""
    sections = [_top(result)]
    sections += [_section(n, rows) for n, rows in _tables(result)]
    pictures = _gallery(result, made)
    if pictures:
        lead = f"Up to {SHOWN} images of each cut, with their MS-SSIM."
        sections.append(Section("pictures", "Pictures", tuple(pictures), lead))
    if missing := _off(result):
        blocks = (Bullets(tuple(missing)),)
        sections.append(
            Section("missing", "What is missing, and how to get it", blocks)
        )
    notes = (Bullets(tuple(result.notes)),)
    sections.append(Section("notes", "How to read the tables", notes))
    return render_study(
        TITLE, sections, started=result.started, version=result.privaudit
    )


def summary(result: DragResult) -> str:
    """One sentence: how much was run, and what was not as in the paper."""
    done, asked = result.units
    parts = [f"{done} of {asked} attacks on images were run to their end"]
    left_out = [r for r in result.rows if r.missing]
    if left_out:
        parts.append(f"{len(left_out)} line(s) cannot be run here, or not whole")
    if result.interrupted:
        parts.append("the run was interrupted")
    if result.iterations is not None:
        parts.append(
            f"searches were cut at {result.iterations} iterations, which is not the "
            "paper's schedule"
        )
    if result.metrics_off:
        parts.append(f"not scored: {', '.join(result.metrics_off)}")
    if result.code_states > 1:
        parts.append(
            f"they were computed by {result.code_states} states of the source code"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _top(result: DragResult) -> Section:
    done, asked = result.units
    facts = (
        Fact("Paper", result.paper),
        Fact("Images", str(len(result.images)), "the paper: 30"),
        Fact("Attacks run", f"{done} of {asked}"),
    )
    blocks: list[Block] = [Heading(TITLE), KeyValues(facts)]
    whole = result.complete and not any(r.missing for r in result.rows)
    if not whole or result.iterations or result.metrics_off or result.code_states > 1:
        remedy = 'Start the same command again to go on; "not run" is never a number.'
        blocks.append(
            Callout(
                "warning", "Note", "Not the whole comparison", summary(result), remedy
            )
        )
    return Section("summary", "Summary", tuple(blocks), first_screen=True)


def _tables(result: DragResult) -> Iterator[tuple[str, list[RowResult]]]:
    for name in dict.fromkeys(r.paper.table for r in result.rows):
        yield name, [r for r in result.rows if r.paper.table == name]


def _parts(
    name: str, rows: Sequence[RowResult]
) -> list[tuple[Sequence[str], list[tuple[str, ...]]]]:
    """What is shown of a table: heads and rows."""
    if name == "6":
        return [(_ACCURACY, [_accuracy(r) for r in rows])]
    cost = (_COST, [_cost(r) for r in rows])
    if name == "8":
        return [cost]
    scores = (_HEAD, [_scores(r) for r in rows])
    return [scores, (_MORE, [_more(r) for r in rows]), cost]


def _section(name: str, rows: Sequence[RowResult]) -> Section:
    first, *others = [_block(head, cells) for head, cells in _parts(name, rows)]
    titles = ("DINO and SSIM", "What it cost")
    blocks: list[Block] = [first]
    blocks += [Details(t, (b,)) for t, b in zip(titles, others, strict=False)]
    return Section(f"table-{name}", title(name), tuple(blocks))


def _block(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = [Column(name, numeric=name not in _WORDS) for name in head]
    return table(plural(len(rows), "line"), columns, rows)


def _scores(row: RowResult) -> tuple[str, ...]:
    states = ", ".join(f"{n} {word}" for word, n in row.states.items())
    found: list[str] = []
    for metric in ("ms_ssim", "lpips"):
        found += [_ours(row, metric), _paper(row, metric), _difference(row, metric)]
    ended = "; ".join(filter(None, [states, row.note]))
    return (*_start(row), f"{row.done} of {row.images}", *found, ended)


def _more(row: RowResult) -> tuple[str, ...]:
    theirs = row.paper.mean.get("dino")
    shown = phrases.DASH if theirs is None else f"({theirs:.3f})"
    return (*_start(row), _ours(row, "dino"), shown, _ours(row, "ssim"))


def _cost(row: RowResult) -> tuple[str, ...]:
    theirs = row.paper.seconds
    paper = phrases.DASH if theirs is None else f"{theirs:,.0f}"
    if row.iterations is None:
        return (*_start(row), NOT_RUN, NOT_RUN, paper, phrases.DASH, "", row.note)
    low, high = row.iterations
    spent = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    apart = row.difference.get("seconds")
    shown = phrases.DASH if apart is None else f"{apart:+,.0f}".replace("-", "−")
    seconds = f"{row.ours['seconds'].mean:,.1f}"
    on = ", ".join(row.machines)
    return (*_start(row), spent, seconds, paper, shown, on, row.note)


def _accuracy(row: RowResult) -> tuple[str, ...]:
    paper = row.paper
    return (
        paper.model, paper.defense, NOT_RUN, f"{paper.accuracy:.2f} %", row.note,
    )  # fmt: skip


def _start(row: RowResult) -> tuple[str, str]:
    return row.paper.place, row.paper.attack


def _ours(row: RowResult, metric: str) -> str:
    """Mean and spread; in words where there is no number."""
    found = row.ours.get(metric)
    if found is not None:
        return f"{found.mean:.3f} ± {found.std:.3f}"
    return "not scored" if row.done else NOT_RUN


def _paper(row: RowResult, metric: str) -> str:
    value = row.paper.mean.get(metric)
    return phrases.DASH if value is None else f"{value:.3f}"


def _difference(row: RowResult, metric: str) -> str:
    value = row.difference.get(metric)
    return phrases.DASH if value is None else f"{value:+.3f}".replace("-", "−")


def _off(result: DragResult) -> list[str]:
    off = [f"Not scored: {reason}" for reason in result.metrics_off.values()]
    return [*result.remedies.values(), *off]


def _lines(head: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _gallery(result: DragResult, made: Reproduction) -> list[Block]:
    """Per cut the first images, each beside what every attack made of it."""
    places: dict[str, list[PaperRow]] = {}
    for row in result.rows:
        if row.done:
            where = f"{row.paper.place}{', aerial' if row.paper.table == 'f4' else ''}"
            places.setdefault(where, []).append(row.paper)
    blocks: list[Block] = []
    for where, rows in places.items():
        by_attack = {r.attack: (r, made.cells(r)) for r in rows}
        names = dict.fromkeys(n for _, cells in by_attack.values() for n in cells)
        for name in list(names)[:SHOWN]:
            some = {a: (r, c[name]) for a, (r, c) in by_attack.items() if name in c}
            blocks += [Heading(where, name), _strip(name, some, made)]
    return blocks


def _strip(
    name: str, cells: dict[str, tuple[PaperRow, Cell]], made: Reproduction
) -> Strip:
    from torch import from_numpy

    from privaudit._pixels import to_png

    row = next(iter(cells.values()))[0]
    files = {"original": to_png(made.truth(row, name)[0].cpu())}
    for attack, (_, cell) in cells.items():
        found = cell.arrays().get("reconstruction")
        if found is not None:
            files[attack] = to_png(from_numpy(found))
    pictures = Pictures(files, "none")
    figures = [pictures.figure("original", "Original", f"Original of {name}")]
    figures += [
        _figure(pictures, attack, name, made.value(row, cell, "ms_ssim", name))
        for attack, (row, cell) in cells.items()
        if attack in files
    ]
    return Strip(tuple(figures))


def _figure(pictures: Pictures, attack: str, name: str, value: float | None) -> Figure:
    shown = "not scored" if value is None else f"{value:.3f}"
    return pictures.figure(attack, f"{attack}: {shown}", f"{name}, by {attack}")
