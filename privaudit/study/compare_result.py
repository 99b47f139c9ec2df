"""What a comparison of defenses found, and what it says of each in one sentence."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from privaudit.inventory.records import Detection

NONE = "none"
"""Label of the row without a defense."""
SMALL = 0.05
"""Difference of SSIM below which two attacks count as alike."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Attacked(_Record):
    """What one kind of attacker got."""

    word: str
    """Of the verdict."""
    line: str
    """The final line of the audit."""
    attack: str = ""
    """Which gave the worst image."""
    countermeasures: list[str] = Field(default_factory=list)
    ssim_worst: float | None = None
    ssim_mean: float | None = None
    """Over images, of each image's leakiest reconstruction."""
    re_identification: float | None = None
    """The highest rate of any attack."""
    leaks: dict[str, float] = Field(default_factory=dict)
    """Metrics beyond their limit, with the worst value."""
    by_attack: dict[str, float] = Field(default_factory=dict)
    """Mean SSIM of each attack, by its label."""
    control_passed: bool | None = None
    """Whether the attacks solved the case that they must solve; None: not tried."""
    notes: list[str] = Field(default_factory=list)
    """What the countermeasures did, with their numbers."""
    causes: list[str] = Field(default_factory=list)
    seconds: float = 0.0


class DefenseRow(_Record):
    """One defense, or several in a stated order."""

    label: str
    titles: list[str] = Field(default_factory=list)
    sources: list[str] = Field(default_factory=list)
    does_not_protect: list[str] = Field(default_factory=list)
    settings: list[dict[str, Any]] = Field(default_factory=list)
    naive: Attacked | None = None
    """The attacker who does not know of it."""
    adaptive: Attacked | None = None
    """The attacker who does."""
    answered: bool = True
    """False where no countermeasure is known here: both attackers are one."""
    known_to_attacks: bool = False
    """True where it changes the model or the client, which attacks see as they are."""
    detections: list[Detection] = Field(default_factory=list)
    """What the attacker sees of it, who is not told."""
    utility: float | None = None
    utility_note: str = ""
    """Why there is none, or how it was measured."""
    cost_ms: float | None = None
    """Added to one request, or to one client's step; median of the run."""
    cost_share: float | None = None
    """The same over what the undefended client takes."""
    bytes_sent: int | None = None
    """For one image, or for one client's step."""
    bytes_undefended: int | None = None
    fit_seconds: float = 0.0
    notes: list[str] = Field(default_factory=list)
    """Such as the ε of its privacy accountant."""
    error: str = ""
    """Why the row is not whole."""

    @property
    def worst(self) -> Attacked | None:
        """The stronger attacker: by worst SSIM."""
        known = [a for a in (self.naive, self.adaptive) if a is not None]
        return max(known, key=lambda a: _value(a.ssim_worst), default=None)

    @property
    def complete(self) -> bool:
        """True when both attackers ended."""
        return self.naive is not None and self.adaptive is not None

    @property
    def leaks(self) -> bool:
        """True where either attacker got an image."""
        return any(a and a.word == "leaks" for a in (self.naive, self.adaptive))

    @property
    def stops_naive_only(self) -> bool:
        """True where only the attacker who does not know of it is kept away."""
        naive, adaptive = self.naive, self.adaptive
        if naive is None or adaptive is None:
            return False
        return adaptive.word == "leaks" and naive.word != "leaks"


class ComparisonResult(_Record):
    """The document of a comparison: rows in the order in which they were asked for."""

    schema_version: Literal["1"] = "1"
    privaudit: str
    started: str
    """UTC, ISO 8601."""
    model: str
    exposure: Literal["gradient", "features"]
    place: str
    """The cut, or what a client sends."""
    images: int
    attacks: list[str]
    utility: str
    """What the utility is; empty: none was given."""
    ssim_limit: float | None
    rows: list[DefenseRow]
    paper: dict[float, float] = Field(default_factory=dict)
    """SSIM of the paper's attack by dropout rate, to be drawn beside ours."""
    interrupted: bool = False

    @property
    def base(self) -> DefenseRow | None:
        """The row without a defense, if there is one."""
        return next((r for r in self.rows if r.label == NONE), None)

    @property
    def complete(self) -> bool:
        """True when every row is whole."""
        return not self.interrupted and all(
            r.complete and not r.error for r in self.rows
        )

    @property
    def ranked(self) -> list[DefenseRow]:
        """Defenses that were measured against both attackers, the best first.

        Those without a leak before those with one; then by the worst SSIM, then by
        utility.
        """
        measured = [r for r in self.rows if r.complete and r.label != NONE]
        return sorted(measured, key=_rank)


def _rank(row: DefenseRow) -> tuple[bool, float, float]:
    worst = row.worst
    ssim = _value(worst.ssim_worst if worst else None)
    return row.leaks, round(ssim / SMALL), -(row.utility or 0.0)


def _value(ssim: float | None) -> float:
    return -1.0 if ssim is None else ssim


def sentence(row: DefenseRow, result: ComparisonResult) -> str:
    """What a reader needs to know of one row, in plain words."""
    if not row.complete:
        return f"{row.label}: not measured to the end ({row.error or 'interrupted'})."
    return f"{row.label}: {_protection(row)}; {_price(row, result)}."


def _protection(row: DefenseRow) -> str:
    naive, adaptive = row.naive, row.adaptive
    if naive is None or adaptive is None:
        return "not measured"
    if row.label == NONE:
        return f"an attacker rebuilds images up to SSIM {_of(naive)} ({naive.word})"
    both = f"worst SSIM {_of(naive)} for an attacker who does not know of it, "
    if row.answered:
        both += f"{_of(adaptive)} for one who does"
    elif row.known_to_attacks:
        both = f"worst SSIM {_of(adaptive)}; attacks see it as part of the model"
    else:
        both += "and nothing more is known here that an attacker could do"
    if row.stops_naive_only:
        return f"stops only the attacker who does not know of it ({both})"
    if row.leaks:
        return f"does not protect ({both})"
    open_ended = [a.word for a in (naive, adaptive) if a.word != "no leak found"]
    if open_ended:
        return f"nothing was rebuilt beyond the limit, but {open_ended[-1]} ({both})"
    return f"no leak found ({both})"


def _of(attacked: Attacked) -> str:
    if attacked.ssim_worst is None:
        return "not measured"
    others = "" if "ssim" in attacked.leaks else _others(attacked)
    return f"{attacked.ssim_worst:.2f}{others}"


def _others(attacked: Attacked) -> str:
    """What leaks where SSIM does not."""
    said = [f"{name} {value:.2f}" for name, value in attacked.leaks.items()]
    return f" (leaks by {', '.join(said)})" if said else ""


def _price(row: DefenseRow, result: ComparisonResult) -> str:
    said = []
    base = result.base
    if row.utility is None:
        said.append(f"utility not measured ({row.utility_note or 'none was given'})")
    elif base is None or base is row or base.utility is None:
        said.append(f"{result.utility} {row.utility:.3f}")
    else:
        change = row.utility - base.utility
        said.append(f"{result.utility} {row.utility:.3f} ({change:+.3f})")
    if row.cost_ms is not None and row.label != NONE:
        said.append(f"{row.cost_ms:+.2f} ms")
    sent, before = row.bytes_sent, row.bytes_undefended
    if sent is not None and before and sent != before:
        said.append(f"{sent / before:.0%} of the bytes")
    return ", ".join(said)


def answer(result: ComparisonResult) -> list[str]:
    """Which to ship? Ranks only what was measured."""
    if not result.ranked:
        return ["No defense was measured against both attackers."]
    clear = [r for r in result.ranked if not r.leaks]
    cleared = [
        r for r in clear
        if all(a and a.word == "no leak found" for a in (r.naive, r.adaptive))
    ]  # fmt: skip
    said = []
    if cleared:
        names = ", ".join(r.label for r in cleared)
        said.append(f"No leak was found, by either attacker, behind: {names}.")
    elif clear:
        names = ", ".join(r.label for r in clear)
        said.append(
            f"Nothing was rebuilt beyond the limit behind {names}, but those audits "
            "are inconclusive: treat them as not tested."
        )
    else:
        said.append(
            "None of the defenses measured keeps an attacker away who knows of it."
        )
    best = result.ranked[0]
    worst = best.worst
    highest = max(_value(r.worst.ssim_worst if r.worst else None) for r in result.rows)
    if (
        worst is not None
        and worst.ssim_worst is not None
        and worst.ssim_worst < highest - SMALL
    ):
        said.append(
            f"Of those measured {best.label} leaves least: worst SSIM "
            f"{worst.ssim_worst:.2f}"
            + ("" if best.utility is None else f", {result.utility} {best.utility:.3f}")
            + "."
        )
    fooled = [r.label for r in result.rows if r.stops_naive_only]
    if fooled:
        said.append(
            f"Only an attacker who does not know of it is stopped by: "
            f"{', '.join(fooled)}."
        )
    return said
