"""The numbers of Lei 2025, and how its lines are run."""

from __future__ import annotations

import csv
from collections.abc import Collection
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.attacks import FeatureAttack

SOURCE = (
    "Lei, Chen, Chen 2025, DRAG: Data Reconstruction Attack using Guided Diffusion, "
    "tables 1 to 3 and 5 to 8, figure 4; means over 30 images"
)
METRICS = ("ms_ssim", "lpips", "dino")
COMPARED = ("ms_ssim", "lpips")
"""The paper's DINO column was made with a layer of random weights (its code reads
``pooler_output``), and is no number to compare with."""
TITLES = {"6": "Table 6 (accuracy of the models)", "f4": "Figure 4 (aerial images)"}
DEFENSES = {
    "Config-I": "DISCO, ρ .95, r .1", "Config-II": "DISCO, ρ .75, r .2",
    "Config-III": "DISCO, ρ .95, r .5", "Config-IV": "NoPeek, ρ 1",
    "Config-V": "NoPeek, ρ 3", "Config-VI": "NoPeek, ρ 5",
}  # fmt: skip
"""Table 4."""

Prior = Literal["", "diffusion", "bedroom", "gan", "inverse_network"]
_DRAG = {
    "steps": 250, "rounds": 16, "weight": 0.2, "clip_norm": 0.02, "eta": 1.0,
    "l2_weight": 0.01, "moments": True, "through": True, "mix": "lerp",
    "clip_clean": False, "clamp_input": True, "give_up": 0, "distance": None,
}  # fmt: skip
_LONG = {
    "iterations": 20_000,
    "distance": None,
    "patch_weight": 0.001,
    "opponent": False,
}
_ATTACKS: dict[str, tuple[str, dict[str, Any], tuple[Prior, ...]]] = {
    "rmle": (
        "rmle",
        {**_LONG, "learning_rate": 0.05, "tv_weight": 1.5, "tv_weight_end": 1.5,
         "clip_norm": 1.0, "cool": 0.0, "give_up": 20_000},
        (),
    ),
    "lm": ("lm", {**_LONG, "learning_rate": 0.01, "tv_weight": 0.05, "cool": 0.0}, ()),
    "glass": (
        "glass",
        {"iterations": 20_000, "learning_rate": 0.01, "kl_weight": 1.0,
         "tv_weight": 0.0, "give_up": 20_000, "distance": None},
        ("gan",),
    ),
    "drag": ("drag", _DRAG, ("diffusion",)),
    "drag_bedroom": ("drag", _DRAG, ("bedroom",)),
    "drag_pp": (
        "drag_pp", {"strength": 0.3, "drag": _DRAG}, ("diffusion", "inverse_network"),
    ),
    "in_network": ("inverse_network", {}, ("inverse_network",)),
}  # fmt: skip
"""Name here: our attack, the paper's settings, what it needs.
Source: Lei 2025, tables 9 and 10, and its code for what x̂₀ is clamped to."""
_NAMES = {
    "rMLE": "rmle", "LM": "lm", "DRAG": "drag", "DRAG++": "drag_pp",
    "IN": "in_network", "DRAG (LSUN bedroom)": "drag_bedroom",
}  # fmt: skip


class PaperRow(BaseModel):
    """One line of a table, as printed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    """Number of a table, or ``f4``."""
    model: str
    split: str
    """Such as ``Layer 12``; empty where none is named."""
    defense: str
    """``none``, or a configuration of table 4."""
    attack: str
    """As printed; empty in table 6."""
    mean: dict[str, float]
    """Per metric, of images in [0, 1]."""
    accuracy: float | None = None
    """Of the model on ImageNet-1K, percent (table 6)."""
    seconds: float | None = None
    """Per image, on the paper's machine (table 8)."""

    @property
    def name(self) -> str:
        """Our name of the attack; empty where none is meant."""
        if self.attack.startswith("GLASS"):
            return "glass"
        return _NAMES.get(self.attack, "")

    @property
    def missing(self) -> str:
        """Why this version cannot run it at all; empty where it can."""
        config = self.defense.removesuffix(" w/ adaptive")
        if config in DEFENSES:
            return (
                f"the defense {self.defense} ({DEFENSES[config]}) is not part of this "
                "version of privaudit"
            )
        if self.table == "6":
            return (
                "needs classification heads trained on ImageNet-1K, which are not part "
                "of this version of privaudit"
            )
        return ""

    @property
    def needs(self) -> tuple[Prior, ...]:
        """What the attacker must be handed."""
        return _ATTACKS[self.name][2] if self.name else ()

    def build(self) -> FeatureAttack:
        """Our attack as the paper sets it."""
        from privaudit.attacks import FEATURE_ATTACKS

        name, settings, _ = _ATTACKS[self.name]
        return FEATURE_ATTACKS[name].model_validate(settings)

    @property
    def place(self) -> str:
        """For readers, such as ``CLIP-ViT-B/16, Layer 12``."""
        parts = [self.model, self.split, "" if self.defense == "none" else self.defense]
        return ", ".join(filter(None, parts))


class Wanted(BaseModel):
    """Which lines to reproduce; None means any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tables: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    splits: tuple[str, ...] | None = None
    attacks: tuple[str, ...] | None = None

    def rows(self) -> list[PaperRow]:
        """The lines, in the order of the paper.

        Raises:
            ConfigError: A value that no line has, or a combination that none has.
        """
        rows = paper_rows()
        for facet, asked in self.model_dump().items():
            known = dict.fromkeys(_facet(r, facet) for r in rows)
            strange = [a for a in asked or () if a not in known]
            if strange:
                raise _unknown(facet, strange, known)
        found = [r for r in rows if all(self._takes(r, n) for n in self.model_dump())]
        if not found:
            asked = {n: v for n, v in self.model_dump().items() if v}
            raise ConfigError(
                "reproduce drag",
                expected="a combination that the paper has",
                got=", ".join(f"{n}={v}" for n, v in asked.items()),
                hint="Leave some of the options out; --dry-run lists the lines.",
            )
        return found

    def _takes(self, row: PaperRow, facet: str) -> bool:
        asked = getattr(self, facet)
        return asked is None or _facet(row, facet) in asked


def slug(text: str) -> str:
    """As options and files write it: ``clip-vit-b-16``, ``layer-12``."""
    return text.lower().replace("/", "-").replace(" ", "-")


def title(table: str) -> str:
    """Head of a table."""
    return TITLES.get(table, f"Table {table}")


def paper_rows() -> list[PaperRow]:
    """Every line of the tables.

    Source: Lei 2025, tables 1 to 3 and 5 to 8, figure 4.
    """
    text = (files("privaudit.study") / "drag_paper.csv").read_text(encoding="utf-8")
    return [_row(r) for r in csv.DictReader(text.splitlines())]


def _row(line: dict[str, str]) -> PaperRow:
    return PaperRow(
        **{n: line[n] for n in ("table", "model", "split", "defense", "attack")},
        mean={m: float(line[m]) for m in METRICS if line[m]},
        accuracy=_number(line["accuracy"]),
        seconds=_number(line["seconds"]),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def _facet(row: PaperRow, facet: str) -> str:
    return {
        "tables": row.table,
        "models": slug(row.model),
        "splits": slug(row.split),
        "attacks": row.name,
    }[facet]


def _unknown(facet: str, asked: list[Any], known: Collection[str]) -> ConfigError:
    return ConfigError(
        f"reproduce drag, {facet}",
        expected=f"one of {', '.join(sorted(filter(None, known)))}",
        got=", ".join(map(str, asked)),
        hint="These are what the paper's tables have.",
    )
