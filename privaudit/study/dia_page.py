"""Ours, the paper's and the difference: as Markdown, and as a page with pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from privaudit.study.dia_result import NOT_RUN, DiaResult, RowResult, as_list
from privaudit.study.keys import Cell
from privaudit.study.reproduce_dia import Reproduction

if TYPE_CHECKING:
    from privaudit.study.dia_paper import Case

TITLE = "Dropout inversion, ours and the paper's"
SHOWN_VICTIMS = 2
"""Of each setting."""
_SCORES = ("SSIM", "SSIM, range 2", "paper", "difference")
_PAIRS = {"psnr": "PSNR (dB)", "mse": "MSE", "mmd": "MMD", "trd": "TRD"}
_HEAD = ("Setting", "Attack", "Victims", *_SCORES, "Audit's worst case", "Ended")
_MORE = ("Setting", "Attack", *(f"{name}, ours / paper" for name in _PAIRS.values()))
_COST = ("Setting", "Attack", "Iterations", "Seconds per victim", "CPU seconds")


def write(result: DiaResult, made: Reproduction, folder: Path) -> None:
    """``report.json``, ``report.md`` and ``report.html`` into ``folder``.

    Raises:
        ReportError: The place cannot be written.
    """
    write_file(folder / "report.json", result.model_dump_json(indent=2).encode())
    write_file(folder / "report.md", markdown(result).encode())
    write_file(folder / "report.html", page(result, made).encode())


def markdown(result: DiaResult) -> str:
    """One table per table of the paper, and what to know about them."""
    lines = [f"# {TITLE}", "", f"Paper: {result.paper}.", "", summary(result), ""]
    for number, rows in _tables(result):
        lines += [f"## Table {number}", "", *_lines(_HEAD, map(_scores, rows)), ""]
        lines += [*_lines(_MORE, map(_more, rows)), ""]
        lines += [*_lines(_COST, map(_cost, rows)), ""]
    return "\n".join([*lines, "## Notes", "", *(f"- {n}" for n in result.notes), ""])


def page(result: DiaResult, made: Reproduction) -> str:
    """The same as one self-contained HTML page, with pictures of the first victims."""
    sections = [_top(result)]
    sections += [_table_section(n, rows) for n, rows in _tables(result)]
    pictures = _gallery(result, made)
    if pictures:
        lead = f"Up to {SHOWN_VICTIMS} victims of each setting, with their SSIM."
        sections.append(Section("pictures", "Pictures", tuple(pictures), lead))
    notes = (Bullets(tuple(result.notes)),)
    sections.append(Section("notes", "How to read the tables", notes))
    return render_study(
        TITLE, sections, started=result.started, version=result.privaudit
    )


def summary(result: DiaResult) -> str:
    """One sentence: how much was run, and what was not as in the paper."""
    done, asked = result.units
    parts = [f"{done} of {asked} attacks on victims were run to their end"]
    left_out = [r for r in result.rows if r.paper.missing]
    if left_out:
        parts.append(f"{len(left_out)} line(s) cannot be run here")
    if result.interrupted:
        parts.append("the run was interrupted")
    if result.iterations is not None:
        parts.append(
            f"searches were cut at {result.iterations} iterations, which is not the "
            "paper's schedule"
        )
    if result.code_states > 1:
        parts.append(
            f"they were computed by {result.code_states} states of the source code"
        )
    return "; ".join(parts).capitalize() + "."


def _top(result: DiaResult) -> Section:
    done, asked = result.units
    facts = (
        Fact("Paper", result.paper),
        Fact("Victims per line", str(result.victims), "the paper: 128 images"),
        Fact("Attacks run", f"{done} of {asked}"),
    )
    blocks: list[Block] = [Heading(TITLE), KeyValues(facts)]
    if not result.complete or result.iterations is not None or result.code_states > 1:
        blocks.append(
            Callout(
                "warning", "Note", "Not the whole comparison", summary(result),
                _remedy(result),
            )
        )  # fmt: skip
    return Section("summary", "Summary", tuple(blocks), first_screen=True)


def _remedy(result: DiaResult) -> str:
    if not result.complete:
        return 'Start the same command again to go on; "not run" is never a number.'
    if result.iterations is not None:
        return "Leave --iterations out for the paper's own schedule."
    return "Use a new --out for numbers of one state of the code."


def _tables(result: DiaResult) -> Iterator[tuple[int, list[RowResult]]]:
    numbers = dict.fromkeys(r.paper.table for r in result.rows)
    for number in numbers:
        yield number, [r for r in result.rows if r.paper.table == number]


def _table_section(number: int, rows: Sequence[RowResult]) -> Section:
    more = Details("Other metrics", (_block(_MORE, [_more(r) for r in rows]),))
    cost = Details("What it cost", (_block(_COST, [_cost(r) for r in rows]),))
    blocks = (_block(_HEAD, [_scores(r) for r in rows]), more, cost)
    lead = "The paper's means are over 128 images; ± is the spread over images."
    return Section(f"table-{number}", f"Table {number}", blocks, lead)


def _block(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    words = {"Setting", "Attack", "Ended", "Audit's worst case"}
    columns = [Column(name, numeric=name not in words) for name in head]
    return table(plural(len(rows), "line"), columns, rows)


def _scores(row: RowResult) -> tuple[str, ...]:
    paper = row.paper
    head = (paper.case.name, paper.label, f"{row.done} of {row.victims}")
    states = ", ".join(f"{n} {word}" for word, n in row.states.items())
    return (
        *head,
        _ours(row, "ssim"),
        _ours(row, "ssim_range_2"),
        _paper(row, "ssim"),
        _difference(row, "ssim"),
        _worst(row),
        "; ".join(filter(None, [states, row.note])),
    )


def _more(row: RowResult) -> tuple[str, ...]:
    head = (row.paper.case.name, row.paper.label)
    return (*head, *(f"{_ours(row, m)} / {_paper(row, m)}" for m in _PAIRS))


def _cost(row: RowResult) -> tuple[str, ...]:
    head = (row.paper.case.name, row.paper.label)
    if row.iterations is None:
        return (*head, NOT_RUN, NOT_RUN, NOT_RUN)
    low, high = row.iterations
    spent = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    wall, cpu = row.seconds / row.done, row.cpu_seconds / row.done
    return (*head, spent, f"{wall:,.1f}", f"{cpu:,.1f}")


def _ours(row: RowResult, metric: str) -> str:
    """Mean and spread; in words where there is no number."""
    found = row.ours.get(metric)
    if found is not None:
        return f"{_number(found.mean, metric)} ± {_number(found.std, metric)}"
    if not row.done:
        return NOT_RUN
    return phrases.DASH if metric in ("mmd", "trd") else "no image"


def _paper(row: RowResult, metric: str) -> str:
    mean, std = row.paper.mean.get(metric), row.paper.std.get(metric)
    if mean is None:
        return phrases.DASH
    spread = "" if std is None else f" ± {_number(std, metric)}"
    return f"{_number(mean, metric)}{spread}"


def _difference(row: RowResult, metric: str) -> str:
    value = row.difference.get(metric)
    return phrases.DASH if value is None else f"{value:+.3f}".replace("-", "−")


def _worst(row: RowResult) -> str:
    if row.worst is None:
        return NOT_RUN
    by = ", ".join(f"{name} {n}" for name, n in row.worst.attacks.items())
    wide = row.worst.ssim_range_2
    also = f", range 2: {wide.mean:.3f}" if wide else ""
    spent = f"{row.worst.seconds / row.worst.victims:,.1f} s a victim"
    return f"{row.worst.ssim.mean:.3f}{also} ({by}; {spent})"


def _number(value: float, metric: str) -> str:
    return f"{value:.1f}" if metric == "psnr" else f"{value:.3f}"


def _lines(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _gallery(result: DiaResult, made: Reproduction) -> list[Block]:
    cases = dict.fromkeys(r.paper.case for r in result.rows)
    blocks: list[Block] = []
    for case in cases:
        for number in range(SHOWN_VICTIMS):
            cells = made.cells(case, number)
            if cells:
                note = f"victim {number}"
                blocks += [Heading(case.name, note), _strip(case, number, cells)]
    return blocks


def _strip(case: Case, number: int, cells: Mapping[str, Cell]) -> Strip:
    """The first image of a victim, and what each attack made of it."""
    from torch import from_numpy

    from privaudit._pixels import to_png

    files: dict[str, bytes] = {}
    for label, cell in cells.items():
        for name, value in cell.arrays().items():
            kept = name if name == "original" else label
            files.setdefault(kept, to_png(from_numpy(value[0])))
    pictures = Pictures(files, "none")
    what = f"{case.name}, victim {number}"
    figures = [pictures.figure("original", "Original", f"Original of {what}")]
    figures += [
        _figure(pictures, label, what, cell)
        for label, cell in cells.items()
        if label in files
    ]
    return Strip(tuple(figures))


def _figure(pictures: Pictures, label: str, what: str, cell: Cell) -> Figure:
    values = as_list(cell.values["ssim"])
    shown = f"{values[0]:.3f}" if values and values[0] is not None else "no image"
    caption = f"{label}: {shown}, {cell.values['state']}"
    return pictures.figure(label, caption, f"{what}, as rebuilt by {label}")
