"""What a section is made of. Each block kind has one template of its own name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Tone = Literal["plain", "info", "good", "warning", "critical"]
RuleStyle = Literal["grid", "limit", "control"]


@dataclass(frozen=True)
class Block:
    """Base of all blocks; ``kind`` names the template."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Picture:
    """Pixels ready for a page."""

    uri: str
    width: int
    height: int
    pixelated: bool


@dataclass(frozen=True)
class Figure:
    """One picture with its caption, or the words that stand in its place."""

    picture: Picture | None
    caption: str
    alt: str
    missing: str = "image not available"
    tone: Tone = "plain"


@dataclass(frozen=True)
class Fact:
    """A number or word with its name."""

    name: str
    value: str
    note: str = ""
    mono: bool = False


@dataclass(frozen=True)
class Gauge:
    """Where a value in [0, 1] stands against its limit. Positions in percent."""

    value: float
    limit: float
    title: str
    tone: Tone


@dataclass(frozen=True)
class Hero(Block):
    """The first screen."""

    kind: ClassVar[str] = "hero"
    word: str
    strength: str
    tone: Tone
    subject: str
    sentence: str
    facts: tuple[Fact, ...]
    gauge: Gauge | None
    pair: tuple[Figure, ...]
    line: str
    scope: str


@dataclass(frozen=True)
class Heading(Block):
    """A title inside a section."""

    kind: ClassVar[str] = "heading"
    text: str
    note: str = ""
    tag: str = ""
    """What must not be missed about all that follows."""


@dataclass(frozen=True)
class Paragraph(Block):
    """Plain text."""

    kind: ClassVar[str] = "paragraph"
    text: str
    small: bool = False


@dataclass(frozen=True)
class Bullets(Block):
    """A short list, with a title where it needs one."""

    kind: ClassVar[str] = "bullets"
    items: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True)
class Lists(Block):
    """Short lists side by side."""

    kind: ClassVar[str] = "lists"
    lists: tuple[Bullets, ...]


@dataclass(frozen=True)
class Callout(Block):
    """Something that the reader must not miss, with what to do about it."""

    kind: ClassVar[str] = "callout"
    tone: Tone
    label: str
    title: str
    text: str = ""
    remedy: str = ""
    where: str = ""


@dataclass(frozen=True)
class KeyValues(Block):
    """Names and values in two columns."""

    kind: ClassVar[str] = "keyvalues"
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Column:
    """Head of a table column."""

    title: str
    numeric: bool = False
    mono: bool = False


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    text: str
    tone: Tone = "plain"
    note: str = ""


@dataclass(frozen=True)
class Table(Block):
    """Rows under named columns."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class GalleryRow:
    """One image of the audit: its pictures side by side and its numbers."""

    title: str
    note: str
    figures: tuple[Figure, ...]
    facts: tuple[Fact, ...]
    tone: Tone = "plain"
    label: str = ""


@dataclass(frozen=True)
class Gallery(Block):
    """Rows of pictures, with a control that stays beside them."""

    kind: ClassVar[str] = "gallery"
    rows: tuple[GalleryRow, ...]
    control: Figure | None = None


@dataclass(frozen=True)
class Compare(Block):
    """Two pictures in one frame: scrolling the frame moves the border between them."""

    kind: ClassVar[str] = "compare"
    before: Figure
    after: Figure
    hint: str


@dataclass(frozen=True)
class Strip(Block):
    """Pictures in one line."""

    kind: ClassVar[str] = "strip"
    figures: tuple[Figure, ...]
    small: bool = False


@dataclass(frozen=True)
class Mark:
    """One value of a chart, in drawing units."""

    x: float
    y: float
    beyond: bool
    title: str


@dataclass(frozen=True)
class Rule:
    """A horizontal line of a chart with its name."""

    y: float
    text: str
    style: RuleStyle


@dataclass(frozen=True)
class Chart(Block):
    """Values per image against a limit, as inline SVG."""

    kind: ClassVar[str] = "chart"
    anchor: str
    title: str
    description: str
    width: int
    height: int
    left: int
    right: int
    base: float
    radius: float
    marks: tuple[Mark, ...]
    rules: tuple[Rule, ...]
    ticks: tuple[tuple[float, str], ...]
    axis: str


@dataclass(frozen=True)
class Curve:
    """One search: its line, how it ended, and its row in the key."""

    style: int
    points: str
    end: tuple[float, float]
    arrived: bool
    """Exact or converged."""
    name: str
    note: str
    key: float


@dataclass(frozen=True)
class Truth:
    """The loss of one search at the true input; without text it shares the next."""

    y: float
    style: int
    text: str


@dataclass(frozen=True)
class Curves(Block):
    """Lines of several searches in one axis, as inline SVG with its key."""

    kind: ClassVar[str] = "curves"
    anchor: str
    title: str
    description: str
    width: int
    height: int
    left: int
    right: int
    base: float
    curves: tuple[Curve, ...]
    truths: tuple[Truth, ...]
    rows: tuple[tuple[float, str], ...]
    columns: tuple[tuple[float, str], ...]
    axis: str
    scale: str
    """What goes upwards, and how."""
    limits: tuple[tuple[float, str], ...] = ()
    """Upright lines with their names."""


@dataclass(frozen=True)
class Bar:
    """One value with what it is compared with, in drawing units."""

    x: float
    y: float
    chance: float
    title: str


@dataclass(frozen=True)
class Bars(Block):
    """Values in a row, each against a value of its own, as inline SVG."""

    kind: ClassVar[str] = "bars"
    anchor: str
    title: str
    description: str
    width: int
    height: int
    left: int
    right: int
    base: float
    bar: float
    """Width of one bar."""
    bars: tuple[Bar, ...]
    rows: tuple[tuple[float, str], ...]
    axis: str
    legend: str
    """What the bars and the lines across them are."""
    ticks: tuple[tuple[float, str], ...] = ()
    """Names below bars; empty where the axis counts."""


@dataclass(frozen=True)
class Pair:
    """One defense: where it puts each attacker, in drawing units."""

    naive: tuple[float, float]
    adaptive: tuple[float, float]
    number: str
    """Of its row in the table."""
    label: tuple[float, float]
    title: str


@dataclass(frozen=True)
class Tradeoff(Block):
    """Leak against worth, two marks a defense, joined, as inline SVG."""

    kind: ClassVar[str] = "tradeoff"
    anchor: str
    title: str
    description: str
    width: int
    height: int
    left: int
    right: int
    top: int
    base: int
    pairs: tuple[Pair, ...]
    rows: tuple[tuple[float, str], ...]
    columns: tuple[tuple[float, str], ...]
    across: str
    """What goes to the right, with its unit."""
    upwards: str
    """What goes upwards, with its unit."""
    limit: tuple[float, str] | None = None
    """An upright line with its name."""


@dataclass(frozen=True)
class Details(Block):
    """Blocks that most readers skip. Never the only place of something essential."""

    kind: ClassVar[str] = "details"
    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Signature(Block):
    """Lines to sign on."""

    kind: ClassVar[str] = "signature"
    statement: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A titled part of the page."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    lead: str = ""
    scope: str = ""
    """The threat model that the numbers of this section hold for."""
    first_screen: bool = field(default=False, kw_only=True)


def table(
    caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]
) -> Table:
    """Build a table from cells and plain strings."""
    cells = tuple(
        tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows
    )
    return Table(caption=caption, columns=tuple(columns), rows=cells)
