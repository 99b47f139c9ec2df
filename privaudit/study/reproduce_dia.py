"""Runs the lines of Scheliga 2023 that are asked for, one victim at a time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from privaudit import __version__
from privaudit._ladder import GRADIENT_LADDER, WARM
from privaudit._plugin import by_name
from privaudit.attacks import ATTACKS, Attack
from privaudit.study.dia_paper import Case, PaperRow
from privaudit.study.dia_result import (
    DiaResult,
    RowResult,
    as_list,
    summed_up,
    worst_case,
)
from privaudit.study.dia_unit import Victim, Victims, attack_victim, victim
from privaudit.study.keys import Cell, CellKey
from privaudit.study.store import Store

Say = Callable[[str], None]
TRIED = 5
"""Iterations by which an attack is timed."""
NOTES = [
    "Every victim has a model of its own, drawn at random from its number, as are its "
    "dropout masks and the start of each search; the paper's draws are not known.",
    "Victims are the first images of the files given; the paper's means are over 128.",
    "MSE is in the units of the model's input, as the paper's values show; SSIM and "
    "PSNR are of pixels in [0, 1]. MSE, SSIM and PSNR are means over images.",
    "SSIM is by the usual definition, data range 1; the paper's values fit to windows "
    "of 7×7 and a range of 2, which are higher. The difference is taken from that one. "
    "On MNIST they fit neither: images with a smaller MSE than the paper's score below "
    "its SSIM. Compare MSE and PSNR there.",
    "ResNet-18 is torchvision's with one dropout before the classifier; its batch "
    "norms are in eval mode. LeNet and ResNet-18 get MNIST with its channel repeated.",
    "The audit's worst case is the best that closed_form, sparse_factorization, "
    "gauss_newton, dropout_inversion from the masks that the gradient shows (refined), "
    "or any attack of the table without the victim's masks made of the same victims.",
    "WIIG is given the client's masks, which no attacker has: a diagnostic.",
]


@dataclass(frozen=True)
class Task:
    """What ``reproduce dia`` was asked for.

    Attributes:
        rows: Lines of the paper.
        data: Folder with the victims' files.
        victims: Per line; fewer where the file holds fewer.
        iterations: Cap of every search; None: the paper's.
        ladder: Whether the audit's worst case is run as well.
        lines: Whether the lines' own attacks are run; else only the worst case.
    """

    rows: Sequence[PaperRow]
    data: Path
    victims: int = 4
    iterations: int | None = None
    ladder: bool = True
    lines: bool = True


@dataclass
class Reproduction:
    """The units of one task in their store: run, listed, summed up."""

    task: Task
    store: Store
    say: Say = lambda _: None
    computed: int = 0
    """Units that this process ran."""
    interrupted: bool = False
    _cells: dict[tuple[Case, int], dict[str, Cell]] = field(default_factory=dict)
    _data: dict[str, Victims] = field(default_factory=dict)

    def run(self) -> DiaResult:
        """Every unit that is missing; Ctrl-C ends it with what is there."""
        try:
            for case, number in self._places():
                self._attack(self._victim(case, number))
        except KeyboardInterrupt:
            self.interrupted = True
            self.say("Interrupted: finished victims are kept; start again to go on.")
        return self.result()

    def look(self) -> DiaResult:
        """What is in the store already; nothing is run."""
        for case, number in self._places():
            one = self._victim(case, number)
            for label, attack in self._all_attacks(case):
                self._remember(one, label, self.store.get(self._key(one, attack)))
        return self.result()

    def result(self) -> DiaResult:
        """All lines, whether or not they were run."""
        cells = [c for units in self._cells.values() for c in units.values()]
        return DiaResult(
            privaudit=__version__,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            victims=self.task.victims,
            iterations=self.task.iterations,
            interrupted=self.interrupted,
            only_worst_case=not self.task.lines,
            rows=[self._row(row) for row in self.task.rows],
            code_states=len({str(c.values["code"]) for c in cells}),
            notes=NOTES,
        )

    def cells(self, case: Case, number: int) -> Mapping[str, Cell]:
        """The finished units of one victim, by label."""
        return self._cells.get((case, number), {})

    def estimate(self, row: PaperRow) -> tuple[int, float | None]:
        """Units that are missing, and the seconds of one.

        The median of finished units of the same attack on the same model and data;
        without any, a few iterations are timed, what comes before the first is told
        apart from them, and the whole schedule is assumed, which is the most that it
        can be. None: this line cannot be run here.
        """
        attack = row.build()
        if row.missing or attack is None:
            return 0, None
        label, case = _label(attack), row.case
        count = self._count(case)
        done = [c[label] for n in range(count) if label in (c := self.cells(case, n))]
        if done:
            seconds = [float(str(c.values["seconds"])) for c in done]
            return count - len(done), statistics.median(seconds)
        schedule = getattr(attack, "schedule", None)
        most = self.task.iterations or (schedule.iterations if schedule else 1)
        one = self._victim(case, 0)
        (few, before), (more, after) = (
            _timed(one, attack, tried) for tried in (TRIED, 5 * TRIED)
        )
        if more == few:
            return count, after
        return count, before + max(after - before, 0.0) / (more - few) * most

    def _places(self) -> Iterator[tuple[Case, int]]:
        for case in self._cases():
            for number in range(self._count(case)):
                yield case, number

    def _cases(self) -> list[Case]:
        return list(dict.fromkeys(r.case for r in self.task.rows if not r.missing))

    def _count(self, case: Case) -> int:
        return min(self.task.victims, self._victims(case).count(case.batch))

    def _victims(self, case: Case) -> Victims:
        if case.dataset not in self._data:
            self._data[case.dataset] = Victims.load(self.task.data, case.dataset)
        return self._data[case.dataset]

    def _victim(self, case: Case, number: int) -> Victim:
        return victim(self._victims(case), case, number)

    def _attack(self, one: Victim) -> None:
        for attack in self._row_attacks(one.case):
            self._unit(one, attack)
        for attack in self._rungs():
            if self._unit(one, attack).values["state"] == "exact":
                break

    def _unit(self, one: Victim, attack: Attack) -> Cell:
        key = self._key(one, attack)
        cell = self.store.get(key)
        if cell is None:
            name = f"{one.case.name}, victim {one.number}, {_label(attack)}"
            values, arrays = attack_victim(one, attack, self.task.iterations)
            # What broke is no result: it is reported, and tried again next time.
            broke = values["state"] == "failed"
            cell = Cell(key, values, self.store.folder)
            cell = cell if broke else self.store.put(key, values, arrays)
            self.computed += 1
            self.say(_line(name, cell))
        self._remember(one, _label(attack), cell)
        return cell

    def _key(self, one: Victim, attack: Attack) -> CellKey:
        return one.key(attack, self.task.iterations)

    def _remember(self, one: Victim, label: str, cell: Cell | None) -> None:
        if cell is not None:
            self._cells.setdefault((one.case, one.number), {})[label] = cell

    def _row_attacks(self, case: Case) -> list[Attack]:
        """What the lines of one case need, each once."""
        rows = [r for r in self.task.rows if r.case == case and self.task.lines]
        built = [a for r in rows if (a := r.build()) is not None]
        return list({_label(a): a for a in built}.values())

    def _rungs(self) -> list[Attack]:
        """The ladder of an audit; what this version lacks is left out."""
        names = [n for n in GRADIENT_LADDER if n in ATTACKS] if self.task.ladder else []
        return [by_name(ATTACKS, n, WARM.get(n)) for n in names]

    def _climbed(self, cells: Mapping[str, Cell]) -> bool:
        """Whether the ladder was tried to its end on a victim; else nothing is said."""
        rungs = [cells.get(_label(a)) for a in self._rungs()]
        exact = any(c is not None and c.values["state"] == "exact" for c in rungs)
        return bool(rungs) and (exact or None not in rungs)

    def _all_attacks(self, case: Case) -> list[tuple[str, Attack]]:
        return [(_label(a), a) for a in [*self._row_attacks(case), *self._rungs()]]

    def _row(self, row: PaperRow) -> RowResult:
        attack = row.build()
        victims = self.task.victims if row.missing else self._count(row.case)
        if row.missing or attack is None:
            return summed_up(row, [], victims, None)
        label = _label(attack)
        units = [self.cells(row.case, n) for n in range(victims)]
        climbed = [_real(u) for u in units if self._climbed(u)]
        worst = worst_case(climbed)
        return summed_up(row, [u[label] for u in units if label in u], victims, worst)


def _timed(one: Victim, attack: Attack, iterations: int) -> tuple[int, float]:
    """Iterations that were made of so many, and the seconds of all."""
    started = time.perf_counter()
    values, _ = attack_victim(one, attack, iterations)
    return int(str(values["iterations"])), time.perf_counter() - started


def _label(attack: Attack) -> str:
    """Name and the settings that are not the default ones."""
    given = attack.settings_given()
    plain = type(attack)().settings()
    changed = [f"{n} {v}" for n, v in sorted(given.items()) if v != plain[n]]
    return f"{attack.name} ({', '.join(changed)})" if changed else attack.name


def _real(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Without attacks that are given what no attacker has."""
    secret = {name for name, cls in ATTACKS.items() if cls.diagnostic}
    return {
        label: c for label, c in cells.items() if c.key.settings["attack"] not in secret
    }


def _line(name: str, cell: Cell) -> str:
    values = [v for v in as_list(cell.values["ssim"]) if v is not None]
    mean = f"SSIM {math.fsum(values) / len(values):.3f}" if values else "no image"
    seconds = float(str(cell.values["seconds"]))
    return f"{name}: {cell.values['state']}, {mean}, {seconds:.1f} s"
