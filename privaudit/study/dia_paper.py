"""The numbers of Scheliga 2023, tables 3 to 9 of its appendix, and how to run them."""

from __future__ import annotations

import csv
from collections.abc import Collection
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.attacks import Attack

SOURCE = (
    "Scheliga, Mäder, Seeland 2023, Dropout is NOT All You Need to Prevent Gradient "
    "Leakage, tables 3 to 9; means over 128 images"
)
MODELS = {"MLP": "mlp", "ViT": "vit", "LeNet": "lenet", "ResNet": "resnet18"}
"""Models of the tables that are built here. ViT-B/16 on ImageNet needs its images."""
MASK_WEIGHT = 1e-4
"""λ_mask where a table names none, as the paper's section 5.2 settles on."""

Initialisation = Literal["bernoulli", "normal_keep", "normal_half", "analytical"]
_STARTS: dict[str, Initialisation] = {
    "": "bernoulli",
    "bernoulli": "bernoulli",
    "normal_1-p": "normal_keep",
    "normal_0.5": "normal_half",
    "analytical": "analytical",
}
METRICS = ("ssim", "psnr", "mse", "mmd", "trd")


class Case(BaseModel):
    """One victim's setting: what every attack of a comparison has in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    model: str
    p: float
    batch: int

    @property
    def name(self) -> str:
        """For readers, such as ``mlp, cifar10, p = 0.25, batch 1``."""
        return f"{self.model}, {self.dataset}, p = {self.p:g}, batch {self.batch}"


class PaperRow(BaseModel):
    """One line of a table, as printed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: int
    case: Case
    attack: str
    """IG, APRIL, WIIG, DIA, DIA-IG, DIA-APRIL."""
    mask_weight: float | None
    mask_init: str
    parameters: int
    """Values that are optimised."""
    mean: dict[str, float]
    """Per metric; MSE in the units of the model's input (see ``mse`` of a unit)."""
    std: dict[str, float]

    @property
    def missing(self) -> str:
        """Why it cannot be run here; empty where it can."""
        if self.case.dataset not in ("mnist", "cifar10"):
            return f"needs images of {self.case.dataset}, which are not at hand"
        return ""

    def attack_settings(self) -> tuple[str, dict[str, Any]]:
        """Name and settings of our attack that this line is about."""
        if not self.attack.startswith("DIA"):
            plain = {
                "IG": "inverting_gradients",
                "WIIG": "well_informed",
                "APRIL": "april",
            }
            return plain[self.attack], {}
        weight = MASK_WEIGHT if self.mask_weight is None else self.mask_weight
        settings: dict[str, Any] = {
            "initialisation": _STARTS[self.mask_init],
            "mask_weight": weight,
        }
        if self.mask_init == "analytical":
            settings["hold_certain"] = False  # the paper starts there and lets go
        if self.attack == "DIA-APRIL":
            settings["base"] = "april"
        return "dropout_inversion", settings

    def build(self) -> Attack | None:
        """Our attack; None where this version of privaudit lacks it."""
        from privaudit.attacks import ATTACKS

        name, settings = self.attack_settings()
        return ATTACKS[name](**settings) if name in ATTACKS else None

    @property
    def label(self) -> str:
        """The attack with what sets it apart within its table."""
        parts = [] if self.mask_weight is None else [f"λ = {self.mask_weight:g}"]
        if self.table == 3:
            parts.append(self.mask_init.replace("_", " "))
        return f"{self.attack} ({', '.join(parts)})" if parts else self.attack


class Wanted(BaseModel):
    """Which lines to reproduce; None means any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tables: tuple[int, ...] | None = None
    models: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None
    rates: tuple[float, ...] | None = None
    batches: tuple[int, ...] | None = None
    attacks: tuple[str, ...] | None = None

    def rows(self) -> list[PaperRow]:
        """The lines, in the order of the paper.

        Raises:
            ConfigError: A value that no line has, or a combination that none has.
        """
        rows = paper_rows()
        for name, asked in self.model_dump().items():
            known = dict.fromkeys(_facet(r, name) for r in rows)
            strange = [a for a in asked or () if a not in known]
            if strange:
                raise _unknown(name, strange, known)
        found = [r for r in rows if all(self._takes(r, n) for n in self.model_dump())]
        if not found:
            raise ConfigError(
                "reproduce dia",
                expected="a combination that the paper has",
                got=", ".join(f"{n}={v}" for n, v in self.model_dump().items() if v),
                hint="Leave some of the options out; --dry-run lists the lines.",
            )
        return found

    def _takes(self, row: PaperRow, name: str) -> bool:
        asked = getattr(self, name)
        return asked is None or _facet(row, name) in asked


def paper_rows() -> list[PaperRow]:
    """Every line of the tables.

    Source: Scheliga 2023, tables 3 to 9.
    """
    text = (files("privaudit.study") / "dia_paper.csv").read_text(encoding="utf-8")
    return [_row(r) for r in csv.DictReader(text.splitlines())]


def _row(line: dict[str, str]) -> PaperRow:
    return PaperRow(
        table=int(line["table"]),
        case=Case(
            dataset=line["dataset"],
            model=MODELS.get(line["model"], line["model"]),
            p=float(line["p"]),
            batch=int(line["batch"]),
        ),
        attack=line["attack"],
        mask_weight=float(line["lambda_mask"]) if line["lambda_mask"] else None,
        mask_init=line["mask_init"],
        parameters=int(line["parameters"]),
        mean={m: float(line[m]) for m in METRICS if line[m]},
        std={m: float(line[f"{m}_std"]) for m in METRICS if line[f"{m}_std"]},
    )


def _facet(row: PaperRow, name: str) -> Any:
    return {
        "tables": row.table,
        "models": row.case.model,
        "datasets": row.case.dataset,
        "rates": row.case.p,
        "batches": row.case.batch,
        "attacks": row.attack.lower(),
    }[name]


def _unknown(name: str, asked: list[Any], known: Collection[Any]) -> ConfigError:
    return ConfigError(
        f"reproduce dia, {name}",
        expected=f"one of {', '.join(map(str, sorted(known)))}",
        got=", ".join(map(str, asked)),
        hint="These are what the paper's tables have.",
    )
