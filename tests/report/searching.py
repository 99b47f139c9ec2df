"""Records of attacks that search: losses, iterates and masks, for the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privaudit.inventory.records import StochasticCall
from privaudit.result import (
    AttackRecord,
    AuditResult,
    CurvePoint,
    ImageStore,
    Iterate,
    MaskScore,
)
from privaudit.verdict import AttackEvidence, AttackState, Score
from tests.report import build

MILESTONES = (0, 10, 30, 100)
ITERATES = {
    f"images/{label}-{n}.png"
    for label in ("dropout_inversion", "inverting_gradients", "well_informed")
    for n in MILESTONES
}


def attack(
    label: str, state: AttackState, *, diagnostic: bool = False, **changes: Any
) -> AttackRecord:
    """A search of 1,000 iterations whose loss falls by a factor of 10 in 100."""
    evidence = AttackEvidence(
        label=label,
        state=state,
        diagnostic=diagnostic,
        scores={"ssim": [Score(value=0.3)] * 3},
    )
    record = AttackRecord(
        evidence=evidence,
        title=label.replace("_", " ").capitalize(),
        seconds=61.0,
        iterations=1000,
        restarts=2,
        loss_start=1.0,
        loss_final=1e-2,
        loss_truth=2e-3,
        optimised=12_345,
        label_accuracy=2 / 3,
        curve=[CurvePoint(iteration=i, loss=loss_at(i)) for i in range(0, 1001, 5)],
        iterates=[
            Iterate(iteration=n, image=f"images/{label}-{n}.png") for n in MILESTONES
        ],
        images=[f"images/{i}-reconstruction.png" for i in range(3)],
        differences=[None] * 3,
    )
    return record.model_copy(update=changes)


def loss_at(iteration: int) -> float:
    return max(1e-2, 10 ** (-iteration / 100))


def masks(count: int) -> list[MaskScore]:
    """Every third call is of attention, and one mask is worse than blind."""
    return [
        MaskScore(
            name=f"blocks.{i}.drop#0",
            kind="attention-prob dropout" if i % 3 == 2 else "dropout",
            p=0.1,
            mmd=0.3 if i == 0 else 0.02,
            trd=0.01,
            accuracy=0.97,
        )
        for i in range(count)
    ]


def with_masks(count: int) -> dict[str, Any]:
    return {"masks": masks(count), "mask_mmd": 0.0815, "mask_trd": 0.0123}


def attacks(mask_count: int = 12) -> list[AttackRecord]:
    """One that arrived, one that did not, and one that never decides."""
    return [
        attack("dropout_inversion", "converged", **with_masks(mask_count)),
        attack("inverting_gradients", "plateau", loss_truth=0.0),
        attack("well_informed", "converged", diagnostic=True, loss_truth=None),
    ]


def images() -> dict[str, bytes]:
    pictures = {name: build.png(700 + i) for i, name in enumerate(sorted(ITERATES))}
    return {**build.LEAKS.images(), **pictures}


def result(mask_count: int = 12, **changes: Any) -> AuditResult:
    """The leaking audit with three searches after its closed form."""
    record = build.LEAKS.result().record
    found = [record.attacks[0], *attacks(mask_count)]
    changed = record.model_copy(update={"attacks": found, **changes})
    return AuditResult(changed, ImageStore(images()))


@dataclass(frozen=True)
class Searching(build.Case):
    """The same among the cases that every page test goes through."""

    def result(self, **changes: Any) -> AuditResult:
        return result(**changes)


def draws(count: int) -> list[StochasticCall]:
    """Calls of a transformer: two kinds, and one rate that differs."""
    return [
        StochasticCall(
            path=f"layers.{i}",
            call=0,
            kind="attention-prob dropout" if i % 4 == 1 else "dropout",
            p=0.2 if i == count - 1 else 0.1,
            shape=[1, 5, 8],
        )
        for i in range(count)
    ]
