"""How often defenses are found that nobody stated, and how often where there are none.

    python benchmarks/detection.py --out FILE.json

Development: the trained clients of the tests, small models of theirs, MLP and LeNet.
Held out: the zoo of architectures (random weights), on which no threshold was set.
Every model is looked at undefended and behind each defense at several strengths, with
photographs that ship with the package; those of the attacker are others. Prints, per
defense and strength, the share found (what changed nothing counts as undefended); per
defense the false alarms over everything that does not contain it, the area under the
ROC curve, and the curve itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.config import Split
from privaudit.defenses import (
    Defense,
    Disco,
    GaussianNoise,
    GradientClipping,
    GradientPruning,
    LaplaceNoise,
    Quantisation,
    RandomZeroing,
    SignSgd,
    TokenDrop,
    TokenShuffle,
)
from privaudit.defenses.base import FeatureEvidence, GradientEvidence
from privaudit.errors import ConfigError
from privaudit.exposure import GradientExposure
from privaudit.exposure.client_step import defended
from privaudit.inventory.records import FOUND
from privaudit.session.detecting import (
    REFERENCES,
    found_in_features,
    found_in_gradient,
)
from privaudit.session.feature_cut import opened_cut
from privaudit.session.stances import in_slots
from privaudit.types import Batch
from tests.models import split_clients
from tests.models.dia import lenet, mlp
from tests.zoo.split_models import ZOO

IMAGES, CLIENTS = 8, 3


class RandomPruner(nn.Module):
    """Scores that depend on the image and on nothing else."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, sent: Tensor) -> Tensor:
        """(batch, channels)."""
        seed = int(sent.abs().sum() * 1e4) % 2**31
        draws = torch.Generator().manual_seed(seed)
        return torch.randn(len(sent), self.channels, generator=draws)


@dataclass(frozen=True)
class Case:
    """One look: what was there, and how sure each defense's detection is."""

    part: str
    model: str
    truth: tuple[str, ...]
    strength: str
    recorded: bool
    found: Mapping[str, float]


FEATURE_GRID: tuple[tuple[str, Sequence[Defense]], ...] = (
    ("", []),
    ("", [TokenShuffle()]),
    ("0.1", [TokenDrop(ratio=0.1)]),
    ("0.5", [TokenDrop(ratio=0.5)]),
    ("0.1", [RandomZeroing(ratio=0.1)]),
    ("0.2", [RandomZeroing(ratio=0.2)]),
    ("0.5", [RandomZeroing(ratio=0.5)]),
    ("0.01", [GaussianNoise(noise_std=0.01)]),
    ("0.03", [GaussianNoise(noise_std=0.03)]),
    ("0.3", [GaussianNoise(noise_std=0.3)]),
    ("0.01", [LaplaceNoise(noise_std=0.01)]),
    ("0.03", [LaplaceNoise(noise_std=0.03)]),
    ("4", [Quantisation(bits=4)]),
    ("8", [Quantisation(bits=8)]),
    ("shuffle + noise .1", [TokenShuffle(), GaussianNoise(noise_std=0.1)]),
)
PRUNED = (0.1, 0.2, 0.5)
GRADIENT_GRID: tuple[tuple[str, Sequence[Defense]], ...] = (
    ("", []),
    ("0.01", [GaussianNoise(noise_std=0.01)]),
    ("0.03", [GaussianNoise(noise_std=0.03)]),
    ("0.3", [GaussianNoise(noise_std=0.3)]),
    ("0.03", [LaplaceNoise(noise_std=0.03)]),
    ("0.1", [GradientPruning(ratio=0.1)]),
    ("0.2", [GradientPruning(ratio=0.2)]),
    ("0.9", [GradientPruning(ratio=0.9)]),
    ("", [SignSgd()]),
    ("4", [Quantisation(bits=4)]),
    ("8", [Quantisation(bits=8)]),
    ("half the norm", [GradientClipping(max_norm=1.0)]),
)


def feature_cases() -> Iterator[Case]:
    """All cuts of all models."""
    for name, cut in (("vit", "blocks.1"), ("vit", "blocks.5"), ("cnn", "stages.1")):
        model = split_clients.trained(name)
        yield from _looks("development", name, model, Split(cut), (32, 32))
    for name, entry in ZOO.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = entry.build().eval()
        for place in entry.places:
            try:
                yield from _looks(
                    "held out", name, model, Split(place.split), entry.size
                )
            except ConfigError as error:
                print(f"left out: {name} {place.split}: {error}", flush=True)


def _looks(
    part: str, name: str, model: nn.Module, split: Split, size: tuple[int, int]
) -> Iterator[Case]:
    photographs = shipped_images(IMAGES + REFERENCES, (3, *size))
    images, others = photographs[:IMAGES], photographs[IMAGES:]
    normal = Normalisation(split_clients.MEAN, split_clients.STD)
    opened = opened_cut(model, split, images, normal, None)
    exposure, shape = opened.exposure, opened.sent.shape
    with torch.no_grad():
        reference = exposure.predict(model, others).float()
    axis = 1 if exposure.layout.kind == "nchw" else -1
    grid = list(FEATURE_GRID)
    for ratio in PRUNED:
        pruner = RandomPruner(shape[axis])
        grid.append((f"{ratio}", [Disco(ratio=ratio).with_pruner(pruner)]))

    def send(defenses: Sequence[Defense], seed: int) -> Tensor:
        rows = [
            exposure.observe(
                model, Batch(images[i : i + 1], None), defenses=defenses, seed=seed + i
            )
            for i in range(IMAGES)
        ]
        return torch.cat([in_slots(r, shape, exposure.layout).features for r in rows])

    for strength, defenses in grid:
        tokens_only = any(d.name.startswith("token") for d in defenses)
        if tokens_only and exposure.layout.kind != "tokens":
            continue
        try:
            sent, again = send(defenses, 0), send(defenses, 1000)
        except ConfigError:
            continue  # such as a share of tokens that is none of so few
        for resent in (again, None):
            seen = FeatureEvidence(sent, resent, reference, exposure.layout)
            looks = {d.defense: d.confidence for d in found_in_features(seen)}
            truth = tuple(d.name for d in defenses)
            label = f"{name} {split.name}"
            yield Case(part, label, truth, strength, resent is None, looks)


def gradient_cases(every: int = 2) -> Iterator[Case]:
    """Our own models and a part of the zoo, in batches of one and of four."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = {"mlp": mlp(0.0), "mlp p .25": mlp(0.25), "lenet": lenet(0.25)}
    for name, model in own.items():
        yield from _steps("development", name, model, (32, 32))
    for name, entry in list(ZOO.items())[::every]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = entry.build()
        try:
            yield from _steps("held out", name, model, entry.size)
        except Exception as error:  # noqa: BLE001  a zoo of all kinds
            print(f"left out: {name}: {error}", flush=True)


def _steps(
    part: str, name: str, model: nn.Module, size: tuple[int, int]
) -> Iterator[Case]:
    for batch in (1, 4):
        yield from _batches(part, f"{name}, batch {batch}", model, (batch, *size))


def _batches(
    part: str, label: str, model: nn.Module, size: tuple[int, int, int]
) -> Iterator[Case]:
    """Four clients with batches of (images, height, width)."""
    normal = Normalisation(split_clients.MEAN, split_clients.STD)
    exposure = GradientExposure(normal)
    batch, *sides = size
    photographs = shipped_images((CLIENTS + 1) * batch, (3, sides[0], sides[1]))
    parts = torch.split(photographs, batch)
    labels = [torch.arange(i, i + batch) % 5 for i in range(len(parts))]
    batches = [Batch(x, y) for x, y in zip(parts, labels, strict=True)]
    steps = [exposure.observe(model, b, seed=i) for i, b in enumerate(batches[:-1])]
    reference = exposure.observe(model, batches[-1], seed=99).clean.gradients

    def send(number: int, seed: int, rows: Sequence[Defense]) -> Mapping[str, Tensor]:
        return defended(
            steps[number], rows, exposure=exposure, model=model,
            batch=batches[number], seed=seed,
        ).observation.gradients  # fmt: skip

    for strength, defenses in GRADIENT_GRID:
        rows = list(defenses)
        if any(isinstance(d, GradientClipping) for d in rows):
            norms = [_norm(s.observation.gradients) for s in steps]
            rows = [GradientClipping(max_norm=0.5 * min(norms))]
        sent = [send(i, i, rows) for i in range(CLIENTS)]
        truth = tuple(d.name for d in rows)
        if all(
            torch.equal(g, steps[i].clean.gradients[n])
            for i, one in enumerate(sent)
            for n, g in one.items()
        ):
            truth = ()  # such as pruning of entries that were zero before
        for resent in (send(0, 1000, rows), None):
            seen = GradientEvidence(sent, resent, reference, model)
            looks = {d.defense: d.confidence for d in found_in_gradient(seen)}
            yield Case(part, label, truth, strength, resent is None, looks)


def _norm(gradients: Mapping[str, Tensor]) -> float:
    return float(torch.stack([g.norm() for g in gradients.values()]).norm())


def curve(cases: Sequence[Case], name: str) -> dict[str, object]:
    """Area under the ROC curve of one detection, and the curve's corners."""
    yes = [c.found.get(name, 0.0) for c in cases if name in c.truth]
    no = [c.found.get(name, 0.0) for c in cases if name not in c.truth]
    corners = []
    for at in sorted({*yes, *no, FOUND}, reverse=True):
        hit = sum(v >= at for v in yes) / max(1, len(yes))
        false = sum(v >= at for v in no) / max(1, len(no))
        corners.append((round(at, 3), round(false, 4), round(hit, 4)))
    wins = sum((y > n) + 0.5 * (y == n) for y in yes for n in no)
    return {
        "defense": name, "cases": len(yes), "others": len(no),
        "auc": round(wins / max(1, len(yes) * len(no)), 4),
        "found": round(sum(v >= FOUND for v in yes) / max(1, len(yes)), 4),
        "false_alarms": round(sum(v >= FOUND for v in no) / max(1, len(no)), 4),
        "roc": _thinned(corners),
    }  # fmt: skip


def _thinned(corners: list[tuple[float, float, float]]) -> list[object]:
    """At most a dozen corners, the ends among them."""
    step = max(1, len(corners) // 12)
    return [*corners[::step], corners[-1]]


def report(kind: str, cases: Sequence[Case]) -> list[dict[str, object]]:
    """Lines per part and way of sending, printed as they are made."""
    lines = []
    for part in ("development", "held out"):
        for recorded in (False, True):
            some = [c for c in cases if c.part == part and c.recorded == recorded]
            names = sorted({n for c in some for n in c.truth})
            for name in names:
                line: dict[str, object] = {
                    "kind": kind, "part": part,
                    "resent": not recorded, **curve(some, name),
                }  # fmt: skip
                strengths = sorted({c.strength for c in some if name in c.truth})
                line["found_by_strength"] = {
                    s: round(_share(some, name, s), 4) for s in strengths
                }
                lines.append(line)
                print(json.dumps(line), flush=True)
            bare = [c for c in some if not c.truth]
            alarms = [c for c in bare if any(v >= FOUND for v in c.found.values())]
            line = {
                "kind": kind, "part": part, "resent": not recorded,
                "defense": "none", "cases": len(bare), "false_alarms": len(alarms),
                "which": [[c.model, dict(c.found)] for c in alarms][:5],
            }  # fmt: skip
            lines.append(line)
            print(json.dumps(line), flush=True)
    return lines


def _share(cases: Sequence[Case], name: str, strength: str) -> float:
    own = [c for c in cases if name in c.truth and c.strength == strength]
    return sum(c.found.get(name, 0.0) >= FOUND for c in own) / max(1, len(own))


def main() -> None:
    """Look at everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=("features", "gradient"), action="append")
    parser.add_argument("--every", type=int, default=2, help="of the zoo's gradients")
    options = parser.parse_args()
    torch.set_num_threads(1)
    makers: dict[str, Callable[[], Iterator[Case]]] = {
        "features": feature_cases,
        "gradient": lambda: gradient_cases(options.every),
    }
    found, kept = [], []
    for kind in options.kind or list(makers):
        cases = list(makers[kind]())
        found += report(kind, cases)
        kept += [{"kind": kind, **asdict(c)} for c in cases]
    options.out.write_text(json.dumps({"lines": found, "cases": kept}, indent=1))


if __name__ == "__main__":
    main()
