"""Runs a comparison of defenses: the parts that are missing, each kept once it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from privaudit import __version__
from privaudit._provenance import code_digest, model_digest, tensor_digest
from privaudit._resume import code_of
from privaudit.config import DefenseConfig
from privaudit.defenses import Defense, Detection, TrainData
from privaudit.defenses.base import FEATURES, GRADIENT
from privaudit.errors import ConfigError, PrivauditError
from privaudit.session.features import FeatureSession
from privaudit.session.given import settled
from privaudit.session.stances import Chosen, Defended, answers
from privaudit.session.subject import Subject
from privaudit.study.compare_cells import (
    Chain,
    Place,
    attacked,
    blank,
    chain_of,
    cost_of,
    label_of,
    opened,
    pictures_of,
    refuse_twins,
)
from privaudit.study.compare_result import Attacked, ComparisonResult, DefenseRow
from privaudit.study.defended_model import DefendedModel
from privaudit.study.federated import FederatedTraining, trained
from privaudit.study.keys import CellKey
from privaudit.study.store import Arrays, Store
from privaudit.study.utility import Utility, measured, what_of

if TYPE_CHECKING:
    from privaudit.attacks import Attack, FeatureAttack

KIND = "compare-defense"
Given = Defense | Sequence[Defense]
"""One defense, or several in the order in which they act."""
Say = Callable[[str], None]
BY_HAND = "interrupted by hand: it is measured again next time"


class _InterruptedError(Exception):
    """Ctrl-C inside an audit, which keeps what it has and ends."""


@dataclass
class Comparison:
    """Measures the rows that are missing; each part is kept once it is finished.

    Attributes:
        subject: The model and the settings of its audits, without defenses.
        sample: As for ``Auditor.audit``.
        attacks: On gradients, in the order of the ladder.
        feature_attacks: On features, likewise; those of the settings' exposure run.
        utility: What a defended model is worth; None: not measured.
        data: What trained defenses, and models behind gradient defenses, learn from.
        training: Of models behind gradient defenses, for their utility.
        store: Where finished parts are kept; None: nowhere.
        say: Told one sentence a row.
    """

    subject: Subject
    sample: Any
    attacks: Sequence[Attack]
    feature_attacks: Sequence[FeatureAttack]
    utility: Utility | None = None
    data: TrainData | None = None
    training: FederatedTraining = field(default_factory=FederatedTraining)
    store: Store | None = None
    say: Say = lambda _: None
    computed: int = 0
    pictures: dict[str, dict[str, Any]] = field(default_factory=dict)
    _fitted: tuple[str, nn.Module, Chain] | None = None
    _fit_seconds: float = 0.0
    _place: Place = field(default_factory=lambda: Place("", 0, ""))

    @property
    def kind(self) -> str:
        """``features`` or ``gradient``."""
        return GRADIENT if self.subject.config.split is None else FEATURES

    def run(self, given: Sequence[Given]) -> ComparisonResult:
        """Measure each row; one that fails does not stop the others.

        Ctrl-C ends the comparison with what is there.
        """
        chains = [chain_of(g) for g in given]
        refuse_twins([label_of(c) for c in chains])
        for chain in chains:
            for defense in chain:
                if self.kind not in defense.exposures:
                    raise defense.misplaced(self.kind)
        with opened(self.subject, self.sample) as session:
            name = "the gradient of a step"
            if isinstance(session, FeatureSession):
                name = session.split.name
            images = session.sample.images
            self._place = Place(name, len(images), tensor_digest(images))
        rows: list[DefenseRow] = []
        interrupted = False
        for chain in chains:
            row = blank(chain)
            if interrupted:
                rows.append(row.model_copy(update={"error": "interrupted before it"}))
                continue
            try:
                row = self._row(row, chain)
            except KeyboardInterrupt:
                row = row.model_copy(update={"error": BY_HAND})
            interrupted = BY_HAND in row.error
            rows.append(row)
            self.say(f"{row.label}: {row.error or 'measured'}")
        return self._result(rows, interrupted=interrupted)

    def _row(self, row: DefenseRow, chain: Chain) -> DefenseRow:
        """One row; what fails is said in it, and what was measured stays."""
        parts: list[tuple[str, Callable[[], dict[str, Any]]]] = [
            ("naive", lambda: {"naive": self._attacked(chain, row, "none")}),
            ("adaptive", lambda: self._adaptive(chain, row)),
            ("cost", lambda: self._cell(chain, "cost", lambda: self._cost(chain))),
            ("utility", lambda: self._utility(chain)),
        ]
        faults: list[str] = []
        for _, part in parts:
            try:
                row = row.model_copy(update=part())
            except PrivauditError as error:
                if str(error) not in faults:
                    faults.append(str(error))
            except _InterruptedError:
                faults.append(BY_HAND)
                break
        return row.model_copy(update={"error": "; ".join(faults)})

    def _attacked(self, chain: Chain, row: DefenseRow, chosen: str) -> Attacked:
        shown = "naive" if chosen == "none" else "adaptive"

        def make() -> tuple[dict[str, Any], Arrays]:
            subject = self._behind(chain, chosen)
            with opened(subject, self.sample) as session:
                result = (
                    session.audit(self.feature_attacks)
                    if isinstance(session, FeatureSession)
                    else session.audit(self.attacks)
                )
            if result.record.partial is not None:
                raise _InterruptedError
            return attacked(result).model_dump(mode="json"), pictures_of(result)

        values, arrays = self._kept(chain, shown, make)
        kept = self.pictures.setdefault(row.label, {})
        if "original" in arrays:
            kept["original"] = arrays["original"]
        if "reconstruction" in arrays:
            kept[shown] = arrays["reconstruction"]
        return Attacked.model_validate(values)

    def _adaptive(self, chain: Chain, row: DefenseRow) -> dict[str, Any]:
        """What an attacker gets who knows; the same where nothing answers it."""
        told = [d.declared() for d in chain]
        answered = bool(answers(told, "auto", self.kind))
        seen = self._cell(chain, "detections", lambda: self._seen(chain))
        found = [Detection.model_validate(d) for d in seen["detections"]]
        out: dict[str, Any] = {"answered": answered, "detections": found}
        chosen = "auto" if answered else "none"
        out["adaptive"] = self._attacked(chain, row, chosen)
        if not answered and "naive" in self.pictures.get(row.label, {}):
            self.pictures[row.label]["adaptive"] = self.pictures[row.label]["naive"]
        return out

    def _seen(self, chain: Chain) -> dict[str, Any]:
        """What shows of the defense to an attacker who is not told."""
        if not chain:
            return {"detections": []}
        with opened(self._behind(chain, "none"), self.sample) as session:
            found = session.untold()
        return {"detections": [d.model_dump(mode="json") for d in found]}

    def _cost(self, chain: Chain) -> dict[str, Any]:
        with opened(self._behind(chain, "none"), self.sample) as session:
            found = cost_of(session, self._fit(chain)[1])
        said = [n for d in chain for n in d.notes()]
        return {**found, "fit_seconds": self._fit_seconds, "notes": said}

    def _utility(self, chain: Chain) -> dict[str, Any]:
        if self.utility is None:
            return {"utility_note": "none was given"}
        if self.kind == GRADIENT and self.data is None:
            return {
                "utility_note": "the model must be trained behind the defense: "
                "pass train_data"
            }
        return self._cell(chain, "utility", lambda: self._worth(chain))

    def _worth(self, chain: Chain) -> dict[str, Any]:
        utility = self.utility
        if utility is None:
            return {}
        model, acting = self._fit(chain)
        with opened(self._behind(chain, "none"), self.sample) as session:
            if isinstance(session, FeatureSession):
                whole: nn.Module = DefendedModel(
                    model, session.exposure, acting, seed=self.subject.config.seed
                )
                return {"utility": measured(utility, whole)}
            data = self.data
            if data is None:
                return {}
            moved = trained(
                model, data.batches, acting, exposure=session.exposure,
                settings=self.training, seed=self.subject.config.seed,
            )  # fmt: skip
        rounds = f"after {self.training.rounds} rounds of {self.training.clients}"
        return {
            "utility": measured(utility, moved),
            "utility_note": f"{rounds} clients, trained behind the defense",
        }

    def _behind(self, chain: Chain, chosen: Chosen) -> Subject:
        """The audit of the model behind a defense."""
        model, acting = self._fit(chain)
        client = self.subject.config.client
        for defense in acting:
            client = defense.changed_client(client)
        listed = [DefenseConfig(name=d.name, settings=d.settings()) for d in acting]
        config = self.subject.config.model_copy(
            update={
                "defenses": listed,
                "client": client,
                "countermeasures": chosen if isinstance(chosen, str) else list(chosen),
            }
        )
        own = Defended(settled(acting, self.kind), chosen, naive_too=False)
        return replace(self.subject, model=model, config=config, defended=own)

    def _fit(self, chain: Chain) -> tuple[nn.Module, Chain]:
        """The model and the defenses, trained where that must be; kept for one row."""
        label = label_of(chain)
        if self._fitted is not None and self._fitted[0] == label:
            return self._fitted[1:]
        model, acting = self.subject.model, list(chain)
        started = time.monotonic()
        if any(d.trained for d in chain):
            data = self.data or _nothing_to_learn_from(label)
            draws = torch.Generator().manual_seed(self.subject.config.seed)
            with opened(self.subject, self.sample) as session:
                exposure = session.exposure
            for number, defense in enumerate(chain):
                fitted = defense.fit(model, data, exposure=exposure, generator=draws)
                model, acting[number] = fitted.model, fitted.defense
        self._fitted = (label, model, acting)
        self._fit_seconds = time.monotonic() - started
        return model, acting

    def _cell(
        self, chain: Chain, part: str, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        values, _ = self._kept(chain, part, lambda: (make(), {}))
        return dict(values)

    def _kept(
        self,
        chain: Chain,
        part: str,
        make: Callable[[], tuple[dict[str, Any], Arrays]],
    ) -> tuple[Mapping[str, Any], Arrays]:
        key = self._key(chain, part)
        cell = None if self.store is None else self.store.get(key)
        if cell is not None:
            return cell.values, cell.arrays()
        values, arrays = make()
        self.computed += 1
        if self.store is not None:
            self.store.put(key, values, arrays)
        return values, arrays

    def _key(self, chain: Chain, part: str) -> CellKey:
        config = self.subject.config.model_dump(mode="json")
        given: dict[str, Any] = {
            "part": part,
            "defenses": [[d.name, d.settings()] for d in chain],
            "config": config,
            "attacks": {a.name: a.settings() for a in self._running()},
            "code": code_digest(),
            "callables": [code_of(f) for f in self.subject.callables],
            "data": self._data_digest(),
        }
        if part == "utility":
            given["utility"] = [_name(self.utility), *what_of(self.utility)]
            given["training"] = self.training.model_dump(mode="json")
        return CellKey(
            kind=KIND, version=__version__, model=model_digest(self.subject.model),
            data=self._place.digest, settings=given,
        )  # fmt: skip

    def _running(self) -> Sequence[Attack | FeatureAttack]:
        return self.attacks if self.kind == GRADIENT else self.feature_attacks

    def _data_digest(self) -> str:
        """Of the first batch: reading all of it may take minutes."""
        if self.data is None:
            return "none"
        first = next(iter(self.data.batches()), None)
        return "empty" if first is None else tensor_digest(first[0])

    def _result(self, rows: list[DefenseRow], *, interrupted: bool) -> ComparisonResult:
        config = self.subject.config
        limit = config.policy.limits.get("ssim")
        return ComparisonResult(
            privaudit=__version__,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            model=type(self.subject.model).__name__,
            exposure="gradient" if config.split is None else "features",
            place=self._place.name,
            images=self._place.images,
            attacks=[a.name for a in self._running()],
            utility=_name(self.utility),
            ssim_limit=None if limit is None or limit.level == "off" else limit.limit,
            rows=rows,
            interrupted=interrupted,
        )


def _name(utility: Utility | None) -> str:
    if utility is None:
        return ""
    named = str(getattr(utility, "__qualname__", type(utility).__name__))
    return "accuracy" if named.startswith("accuracy.") else named


def _nothing_to_learn_from(label: str) -> TrainData:
    """Refuses once a defense asks for data: some only set something in the model."""

    def batches() -> Any:
        raise ConfigError(
            "compare_defenses(train_data)",
            expected=f"images and labels that {label} can learn from",
            got="None",
            hint="Pass train_data: batches of (images in [0, 1], labels).",
        )

    return TrainData(batches, F.cross_entropy)
