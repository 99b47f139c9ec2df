"""Hard case 12: at the truth, under the recorded masks, nothing is left to match."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import ATTACKS, Attack
from privaudit.attacks import _matching as matching
from privaudit.attacks._matching import Matching, Start, UnknownMasks
from privaudit.attacks._minimise import Descent, Objective, Schedule, minimise
from privaudit.config import Budget
from privaudit.exposure import ClientStep, GradientExposure
from privaudit.types import AttackerKnowledge, Batch, Target
from tests.models.dia import ViT, lenet, mlp

EXPOSURE = GradientExposure(Normalisation((0.5,), (0.25,)))
MATCHING = sorted({*ATTACKS} - {"closed_form", "sparse_factorization"})
SEARCHES = [n for n in MATCHING if n != "gauss_newton"]
"""Those that run the common loop; that one leaves a place instead of restarting."""
WITHOUT_MASKS = {"april", "dlg", "gradinversion", "idlg", "inverting_gradients"}
RESTARTS = 8
BOUND = {torch.float64: 1e-10, torch.float32: 2e-6}
"""Float32 resolves 1 - x to 6e-8: the tight bound needs float64."""
OF_A_NORM = {torch.float64: 1e-7, torch.float32: 2e-5}
"""A norm is as large as the rounding of the gradient, its square is not."""


def bound(name: str, dtype: torch.dtype) -> float:
    return (OF_A_NORM if name == "gradinversion" else BOUND)[dtype]


def small() -> nn.Module:
    """The model of the case, on images."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "small": small,
    "mlp": lambda: mlp(0.5, size=16),
    "no dropout": lambda: mlp(0.0, size=16),
    "lenet": lambda: lenet(0.5, size=16),
    "vit": lambda: ViT(0.25, size=16),
}


def client(
    build: Callable[[], nn.Module], dtype: torch.dtype, scale: float = 1.0
) -> tuple[Target, Batch, ClientStep]:
    torch.manual_seed(0)
    model = build().to(dtype)
    batch = Batch(shipped_images(2, (3, 16, 16)).to(dtype), torch.tensor([1, 2]))
    exposure = EXPOSURE
    if scale != 1.0:
        exposure = GradientExposure(
            EXPOSURE.normalisation,
            loss=lambda z, y: nn.functional.cross_entropy(z, y).mul(scale),
        )
    step = exposure.observe(model, batch, seed=3)
    known = AttackerKnowledge(batch.labels, step.tape)
    return Target(model, exposure, known), batch, step


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", MATCHING)
def test_the_loss_is_nothing_and_the_same_twice(
    name: str, build: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    target, batch, step = client(build, dtype)
    attack = ATTACKS[name].tiny()
    first, again = (
        attack.loss_at(target, step.observation, batch, step.tape) for _ in range(2)
    )
    assert first is not None
    assert first == again
    assert abs(first) < bound(name, dtype)
    other = Batch(batch.images.flip(0), batch.labels)
    elsewhere = attack.loss_at(target, step.observation, other, step.tape)
    assert elsewhere is not None
    assert elsewhere > 1e-3


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_gradient_of_any_size_is_matched_at_the_truth(scale: float) -> None:
    target, batch, step = client(small, torch.float64, scale)
    for name in MATCHING:
        found = ATTACKS[name].tiny().loss_at(target, step.observation, batch, step.tape)
        assert found is not None
        assert abs(found) < bound(name, torch.float64)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", SEARCHES)
def test_every_restart_replays_the_clients_masks(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype
) -> None:
    """Started at the truth, with the client's masks where it optimises them."""
    build = MODELS["no dropout"] if name in WITHOUT_MASKS else small
    torch.manual_seed(0)
    model = build().to(dtype)
    batch = Batch(shipped_images(2, (3, 16, 16)).to(dtype), torch.tensor([1, 2]))
    step = EXPOSURE.observe(model, batch, seed=3)
    target = Target(model, EXPOSURE, AttackerKnowledge(batch.labels, step.tape))
    runs, twice = _watched(monkeypatch, batch, step)
    ATTACKS[name].tiny().run(
        target,
        step.observation,
        budget=Budget(iterations=1, restarts=RESTARTS),
        generator=torch.Generator().manual_seed(0),
    )
    assert len(runs) == RESTARTS
    assert all(abs(r.loss_start) < bound(name, dtype) for r in runs)
    assert len(twice) == RESTARTS
    assert all(a == b for a, b in twice)


def _watched(
    monkeypatch: pytest.MonkeyPatch, batch: Batch, step: ClientStep
) -> tuple[list[Descent], list[tuple[float, float]]]:
    """Start at the truth; keep how every restart went, and two looks at its start."""
    runs: list[Descent] = []
    twice: list[tuple[float, float]] = []
    started = Matching.minimise

    def looked(
        objective: Callable[[], Objective], *args: object, **kw: object
    ) -> Descent:
        first, again = (float(objective().matching.detach()) for _ in range(2))
        twice.append((first, again))
        runs.append(minimise(objective, *args, **kw))  # type: ignore[arg-type]
        return runs[-1]

    def from_truth(self: Matching, start: Start, **kw: object) -> Descent:
        unknown = kw["unknown_masks"]
        assert isinstance(unknown, UnknownMasks)
        masks = _clients_masks(step, len(unknown.start))
        kw["unknown_masks"] = UnknownMasks(masks, unknown.tape_of)
        kw["schedule"] = Schedule(iterations=1, goal=-1.0)
        at_truth = Start(self.scale.apply(batch.images))
        if start.logits is not None:
            sure = nn.functional.one_hot(_class_ids(batch), start.logits.shape[-1])
            at_truth = Start(at_truth.inputs, 1e3 * sure.to(start.logits))
        return started(self, at_truth, **kw)  # type: ignore[arg-type]

    monkeypatch.setattr(matching, "minimise", looked)
    monkeypatch.setattr(Matching, "minimise", from_truth)
    return runs, twice


def _class_ids(batch: Batch) -> Tensor:
    assert batch.labels is not None
    return batch.labels


def _clients_masks(step: ClientStep, count: int) -> Sequence[Tensor]:
    masks = [d.value for d in step.tape.active if d.value is not None]
    return masks[:count]


def test_the_attacks_are_those_with_a_loss() -> None:
    target, batch, step = client(small, torch.float32)

    def loss(attack: Attack) -> float | None:
        return attack.loss_at(target, step.observation, batch, step.tape)

    assert [n for n in sorted(ATTACKS) if loss(ATTACKS[n].tiny()) is not None]
