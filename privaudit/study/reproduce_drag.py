"""Runs the lines of Lei 2025 that are asked for, a few images at a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from privaudit import __version__
from privaudit._provenance import model_digest
from privaudit.errors import ConfigError, PrivauditError
from privaudit.metrics import METRICS
from privaudit.study import drag_clients
from privaudit.study.drag_handed import FACES, Handed, Prior
from privaudit.study.drag_images import Pictures, pictures
from privaudit.study.drag_paper import PaperRow
from privaudit.study.drag_result import DragResult, RowResult, summed_up
from privaudit.study.drag_unit import (
    SCORES,
    TOGETHER,
    Place,
    attack_images,
    batches,
    opened_place,
    score,
)
from privaudit.study.keys import Cell, CellKey
from privaudit.study.store import Store

Say = Callable[[str], None]
AERIAL = "f4"
NOTES = [
    "Images are the first of the folder given, taken from its subfolders in turn; the "
    "paper's means are over 30 images of its own choice.",
    "The paper's DINO column was made with a layer of random weights (its code takes "
    "pooler_output): it is shown for completeness, not compared. Ours is the cosine of "
    "class tokens before the final norm.",
    "The DINO and LPIPS scores need published weights; what is missing is listed, and "
    "never replaced by random weights.",
    "Settings are those of tables 9 and 10. Where pixels outnumber the values that are "
    "sent, total variation weighs more in rmle and lm than in the paper; the squared "
    "error of maps is divided by their mean square.",
    "Inverse networks are files that you trained; how, their training decides.",
    "Seconds are per image, on this machine; table 8 has the paper's, on an RTX A6000.",
    "Figure 4 names no split points and no numbers: DRAG and DRAG++ are run at all.",
]


@dataclass(frozen=True)
class Task:
    """What ``reproduce drag`` was asked for.

    Attributes:
        rows: Lines of the paper.
        images: Folder with its images.
        aerial: Folder with the aerial images of figure 4.
        count: Images per line; fewer where the folder holds fewer.
        iterations: Cap of every search; None: the paper's.
        handed: What the attacker has.
        device: Where it runs.
    """

    rows: Sequence[PaperRow]
    images: Path
    aerial: Path | None = None
    count: int = 4
    iterations: int | None = None
    handed: Handed = field(default_factory=Handed)
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class Unit:
    """One image of one line.

    Attributes:
        key: What it is called by.
        image: (1, C, H, W) in [0, 1].
        name: Of the image.
        priors: What the attacker is handed.
    """

    key: CellKey
    image: Tensor
    name: str
    priors: dict[str, Prior]


@dataclass
class Reproduction:
    """The units of one task in their store: run, listed, summed up."""

    task: Task
    store: Store
    say: Say = lambda _: None
    computed: int = 0
    """Units that this process ran."""
    interrupted: bool = False
    remedies: dict[str, str] = field(default_factory=dict)
    """What is missing here, by how lines name it, and how to get it."""
    _cells: dict[str, Cell] = field(default_factory=dict)
    _lines: dict[tuple[str, str, str], tuple[list[Unit], str]] = field(
        default_factory=dict
    )
    _places: dict[tuple[str, str], Place | str] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)
    _images: dict[tuple[str, int], Pictures] = field(default_factory=dict)
    _memory: dict[str, object] = field(default_factory=dict)

    def run(self) -> DragResult:
        """Every unit that is missing; Ctrl-C ends it with what is there."""
        try:
            for row in self.task.rows:
                self._attack(row)
        except KeyboardInterrupt:
            self.interrupted = True
            self.say("Interrupted: finished images are kept; start again to go on.")
        return self.result()

    def result(self) -> DragResult:
        """All lines, whether or not they were run."""
        rows = [self._row(row) for row in self.task.rows]
        known = [c for r in self.task.rows for c in self.cells(r).values()]
        named = dict.fromkeys(n for p in self._images.values() for n in p.names)
        return DragResult(
            privaudit=__version__,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            images=list(named),
            iterations=self.task.iterations,
            interrupted=self.interrupted,
            rows=rows,
            metrics_off=self.metrics_off,
            remedies=dict(self.remedies),
            code_states=len({str(c.values["code"]) for c in known}),
            notes=NOTES,
        )

    @cached_property
    def metrics_off(self) -> dict[str, str]:
        """Scores that cannot be made here."""
        reasons = {name: METRICS[name]().unavailable() for name in SCORES}
        return {name: reason for name, reason in reasons.items() if reason}

    def cells(self, row: PaperRow) -> dict[str, Cell]:
        """Finished units of a line, by the name of the image."""
        units, _ = self._units(row)
        found = ((u.name, self._known(u)) for u in units)
        return {name: cell for name, cell in found if cell is not None}

    def truth(self, row: PaperRow, name: str) -> Tensor:
        """The image called ``name``, (1, C, H, W)."""
        units, _ = self._units(row)
        return next(u.image for u in units if u.name == name)

    def value(self, row: PaperRow, cell: Cell, metric: str, name: str) -> float | None:
        """One score of one image of a line."""
        return self._score(cell, self.truth(row, name), metric)

    def missing(self, row: PaperRow) -> tuple[int, str, float | None]:
        """Units to run, why a line cannot be run, and the seconds of one so far."""
        units, reason = self._units(row)
        done = [c for u in units if (c := self._known(u)) is not None]
        seconds = [float(str(c.values["seconds"])) for c in done]
        typical = statistics.median(seconds) if seconds else None
        return len(units) - len(done), reason, typical

    def _attack(self, row: PaperRow) -> None:
        place = None if row.missing else self._place(row)
        if not isinstance(place, Place):
            return
        units, _ = self._units(row)
        left = [n for n, u in enumerate(units) if self._known(u) is None]
        for part in batches(left, TOGETHER):
            by_priors: dict[str, list[Unit]] = {}
            for number in part:
                unit = units[number]
                by_priors.setdefault(str(unit.key.settings["priors"]), []).append(unit)
            for some in by_priors.values():
                self._attack_some(row, place, some)

    def _attack_some(self, row: PaperRow, place: Place, units: Sequence[Unit]) -> None:
        made = attack_images(
            place, row.build(), torch.cat([u.image for u in units]),
            priors={n: p.value for n, p in units[0].priors.items()},
            iterations=self.task.iterations,
        )  # fmt: skip
        for unit, (values, arrays) in zip(units, made, strict=True):
            cell = Cell(unit.key, values, self.store.folder)
            # What broke is no result: it is reported, and tried again next time.
            if values["state"] not in ("failed", "skipped"):
                cell = self.store.put(unit.key, values, arrays)
            self._cells[unit.key.digest] = cell
            self.computed += 1
            seconds = float(str(values["seconds"]))
            found = f"{row.place}, {row.attack}, {unit.name}: {values['state']}"
            reason = f" ({values['reason']})" if values["state"] == "failed" else ""
            self.say(f"{found}{reason}, {seconds:.1f} s")

    def _known(self, unit: Unit) -> Cell | None:
        digest = unit.key.digest
        if digest not in self._cells:
            cell = self.store.get(unit.key)
            if cell is None:
                return None
            self._cells[digest] = cell
        return self._cells[digest]

    def _units(self, row: PaperRow) -> tuple[list[Unit], str]:
        """What can be run of a line, and why the rest cannot; looked at once."""
        at = (row.table, row.place, row.attack)
        if at not in self._lines:
            self._lines[at] = self._look(row)
        return self._lines[at]

    def _look(self, row: PaperRow) -> tuple[list[Unit], str]:
        if row.missing:
            return [], row.missing
        place = self._place(row)
        if isinstance(place, str):
            absent = [self._reason(e) for e in self.task.handed.absent(row)]
            return [], "; ".join([place, *absent])
        try:
            shown = self._pictures(row, place.client.side)
        except ConfigError as error:
            return [], self._reason(error)
        units, reasons = [], []
        for name, image in self._of_line(row, shown):
            try:
                units.append(self._unit(row, place, name, image))
            except PrivauditError as error:
                reasons.append(self._reason(error))
        if not units and not reasons:
            reasons = [f"no image is in a folder called {FACES}, or all are"]
        return units, "; ".join(dict.fromkeys(reasons))

    def _of_line(self, row: PaperRow, shown: Pictures) -> Iterator[tuple[str, Tensor]]:
        """The images that a line is about: table 8 tells faces from others."""
        for index, name in enumerate(shown.names):
            face = shown.faces[index]
            if (
                row.table == "8"
                and "(" in row.attack
                and face != ("FFHQ" in row.attack)
            ):
                continue
            yield name, shown.images[index : index + 1]

    def _unit(self, row: PaperRow, place: Place, name: str, image: Tensor) -> Unit:
        faces = FACES in Path(name).parts
        priors = self.task.handed.priors(row, place, faces)
        key = place.key(
            row.build(), image,
            priors={n: p.digest for n, p in priors.items()},
            iterations=self.task.iterations,
        )  # fmt: skip
        return Unit(key, image, name, priors)

    def _pictures(self, row: PaperRow, side: int) -> Pictures:
        aerial = row.table == AERIAL
        folder = self.task.aerial if aerial else self.task.images
        if folder is None:
            raise ConfigError(
                "--aerial-images",
                expected="a folder with images of UCMerced LandUse",
                got="none",
                hint="Get them from its authors, then --aerial-images FOLDER",
            )
        at = (str(folder), side)
        if at not in self._images:
            self._images[at] = pictures(folder, self.task.count, side)
        return self._images[at]

    def _place(self, row: PaperRow) -> Place | str:
        """The cut of a line, or why there is none."""
        at = (row.model, row.split)
        if at not in self._places:
            try:
                self._places[at] = self._opened(row)
            except PrivauditError as error:
                command = drag_clients.command(row.model)
                self._places[at] = self._reason(error, f" The command: {command}")
        return self._places[at]

    def _reason(self, error: PrivauditError, more: str = "") -> str:
        """Short, for a line; the remedy is said once."""
        name = f"{error.where}: {error.got.partition(';')[0]}"
        self.remedies[name] = f"{error}{more}"
        return name

    def _opened(self, row: PaperRow) -> Place:
        client = drag_clients.client_model(row.model)
        client.module.to(self.task.device)
        if row.model not in self._digests:
            self._digests[row.model] = model_digest(client.module)
        return opened_place(
            row.model, row.split, client=client,
            digest=self._digests[row.model], memory=self._memory,
        )  # fmt: skip

    def _row(self, row: PaperRow) -> RowResult:
        units, reason = self._units(row)
        found = [(u, c) for u in units if (c := self._known(u)) is not None]
        scores = {m: [self._score(c, u.image, m) for u, c in found] for m in SCORES}
        asked = len(units) or self.task.count
        return summed_up(
            row, [c for _, c in found], images=asked, missing=reason, scores=scores
        )

    def _score(self, cell: Cell, truth: Tensor, metric: str) -> float | None:
        """Kept once it could be made: weights of metrics may come later."""
        if metric in self.metrics_off or cell.values["state"] in ("failed", "skipped"):
            return None
        key, values, _ = score(cell, truth, metric)
        known = self.store.get(key)
        if known is None and values is not None:
            known = self.store.put(key, values)
        value = known.values["value"] if known else None
        return None if value is None else float(str(value))
