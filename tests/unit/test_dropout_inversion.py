"""DIA and its family on victims small enough for seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, Budget, Client, Knowledge
from privaudit._align import assignment, mask_scores
from privaudit._pixels import Normalisation
from privaudit._samples import load
from privaudit.attacks._mask_search import MaskSearch
from privaudit.attacks._minimise import Schedule
from privaudit.attacks._search import scene_of
from privaudit.attacks.dropout_inversion import DropoutInversion
from privaudit.attacks.inverting_gradients import InvertingGradients
from privaudit.attacks.well_informed import WellInformed
from privaudit.exposure import GradientExposure
from privaudit.metrics import Ssim
from privaudit.result import AuditResult
from privaudit.tape import Draw, Tape
from privaudit.types import AttackerKnowledge, Batch, Reconstruction, Target
from tests.models.dia import ViT, lenet, mlp

QUICK = Schedule(iterations=400)
MEAN = STD = (0.5, 0.5, 0.5)


def photographs(count: int, size: int = 16) -> Tensor:
    pictures = load(count, (size, size))
    flat = [
        torch.frombuffer(bytearray(p.tobytes()), dtype=torch.uint8) for p in pictures
    ]
    return torch.stack([f.view(size, size, 3).permute(2, 0, 1) for f in flat]) / 255


def attack(
    model: nn.Module, plugin: DropoutInversion | WellInformed | InvertingGradients
) -> tuple[Reconstruction, Batch, Tape]:
    batch = Batch(photographs(1), torch.tensor([3]))
    exposure = GradientExposure(Normalisation(MEAN, STD))
    step = exposure.observe(model, batch, seed=0)
    found = plugin.run(
        Target(model, exposure, AttackerKnowledge(batch.labels, step.tape)),
        step.observation,
        budget=Budget(),
        generator=torch.Generator().manual_seed(0),
    )
    return found, batch, step.tape


def ssim(found: Reconstruction, batch: Batch) -> float:
    assert found.images is not None
    return Ssim().score(batch.images, found.images)[0].value or 0.0


def audit(
    model: nn.Module, images: Tensor, *plugins: object, **more: object
) -> AuditResult:
    more.setdefault("client", Client(batch_size=1))
    auditor = Auditor(model, mean=MEAN, std=STD, attacks=list(plugins), **more)  # type: ignore[arg-type]
    return auditor.audit((images, torch.arange(len(images))))


def seeded_mlp(p: float) -> nn.Module:
    torch.manual_seed(0)
    return mlp(p, size=16)


def test_masks_found_beside_the_image_beat_an_attack_that_knows_none() -> None:
    model = seeded_mlp(0.5)
    dia, batch, truth = attack(model, DropoutInversion(schedule=QUICK))
    ig, _, _ = attack(model, InvertingGradients(schedule=QUICK))
    assert ssim(dia, batch) > ssim(ig, batch) + 0.1
    assert dia.masks is not None
    scores = mask_scores([(truth, dia.masks, [0])])
    assert len(scores) == 3
    assert min(s.accuracy for s in scores) > 0.8


def test_without_dropout_it_is_the_base_attack_itself() -> None:
    model = seeded_mlp(0.0)
    quick = Schedule(iterations=40)
    dia, _, _ = attack(model, DropoutInversion(schedule=quick))
    ig, _, _ = attack(model, InvertingGradients(schedule=quick))
    assert dia.images is not None
    assert ig.images is not None
    assert torch.equal(dia.images, ig.images)


@pytest.mark.parametrize(
    ("model", "data", "unknowns"), [("vit", 32, 489_792), ("mlp", 32, 4_608)]
)
def test_the_number_of_unknowns_is_the_papers(
    model: str, data: int, unknowns: int
) -> None:
    torch.manual_seed(0)
    built = ViT(0.25) if model == "vit" else mlp(0.25)
    exposure = GradientExposure(Normalisation(MEAN, STD))
    batch = Batch(photographs(1, data), torch.tensor([1]))
    step = exposure.observe(built, batch, seed=0)
    found = DropoutInversion(schedule=Schedule(iterations=1)).run(
        Target(built, exposure, AttackerKnowledge(batch.labels)),
        step.observation,
        budget=Budget(),
        generator=torch.Generator().manual_seed(0),
    )
    assert found.search is not None
    assert found.search.unknowns == unknowns


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75])
def test_lenet_started_from_the_read_off_mask_is_well_informed(p: float) -> None:
    torch.manual_seed(0)
    model = lenet(p, size=16)
    quick = Schedule(iterations=60)
    start = DropoutInversion(initialisation="analytical", schedule=quick)
    dia, batch, truth = attack(model, start)
    wiig, _, _ = attack(model, WellInformed(schedule=quick))
    assert dia.masks is not None
    assert mask_scores([(truth, dia.masks, [0])])[0].accuracy == 1.0
    assert ssim(dia, batch) == pytest.approx(ssim(wiig, batch), abs=0.01)


@pytest.mark.parametrize(
    "initialisation", ["bernoulli", "normal_keep", "normal_half", "analytical"]
)
def test_every_initialisation_runs_and_keeps_masks_in_range(
    initialisation: str,
) -> None:
    plugin = DropoutInversion(
        initialisation=initialisation,
        schedule=Schedule(iterations=20),
    )
    found, _, _ = attack(seeded_mlp(0.5), plugin)
    assert found.masks is not None
    for draw in found.masks:
        assert draw.value is not None
        assert float(draw.value.min()) >= 0
        assert float(draw.value.max()) <= 1


def test_the_mask_penalty_pulls_towards_the_rate_of_the_layer() -> None:
    model, batch = seeded_mlp(0.25), Batch(photographs(1), torch.tensor([3]))
    exposure = GradientExposure(Normalisation(MEAN, STD))
    target = Target(model, exposure, AttackerKnowledge(batch.labels))
    observation = exposure.observe(model, batch, seed=0).observation
    search = MaskSearch(scene_of(target, observation, torch.Generator()), "bernoulli")
    penalty = search.rates(2.0)
    assert penalty is not None
    whole = [torch.ones_like(m) for m in search.neutral()]
    assert float(penalty(whole)) == pytest.approx(2 * 0.25 * len(whole))
    right = [m * 0.75 for m in whole]
    assert float(penalty(right)) == pytest.approx(0.0, abs=1e-6)


def test_a_batch_is_put_in_order_before_it_is_scored() -> None:
    images = photographs(4)
    order = [2, 0, 3, 1]
    assert assignment(images, images[order]) == [order.index(i) for i in range(4)]


def test_masks_of_a_batch_follow_the_assignment() -> None:
    value = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    truth = Tape((Draw("d", 0, "dropout", value, 0.5),))
    swapped = truth.with_values([value.flip(0)])
    assert mask_scores([(truth, swapped, [1, 0])])[0].accuracy == 1.0
    assert mask_scores([(truth, swapped, [0, 1])])[0].accuracy == 0.5
    half = truth.with_values([torch.full((2, 2), 0.75)])
    score = mask_scores([(truth, half, [0, 1])])[0]
    assert score.trd == pytest.approx(0.0)
    assert score.mmd == pytest.approx((3 * 0.0625 + 0.5625) / 4)


@pytest.mark.slow
def test_batch_of_four_scores_the_same_when_it_is_permuted() -> None:
    images, labels = photographs(4), torch.arange(4)
    model = seeded_mlp(0.25)
    plugin = DropoutInversion(schedule=Schedule(iterations=800))
    results = []
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        auditor = Auditor(model, mean=MEAN, std=STD, attacks=[plugin])
        found = auditor.audit((images[order], labels[order])).attacks[plugin.name]
        assert found.record.masks[0].accuracy > 0.9
        by_image = [0.0] * 4
        for place, index in enumerate(order):
            by_image[index] = found.scores["ssim"][place].value or 0.0
        results.append(by_image)
    assert results[0] == pytest.approx(results[1], abs=0.1)
    assert min(map(min, results)) > 0.7


def test_a_search_that_cannot_move_clears_nothing() -> None:
    still = DropoutInversion(schedule=Schedule(learning_rate=0, iterations=20))
    result = audit(seeded_mlp(0.25), photographs(1), still)
    assert result.verdict.word == "inconclusive"
    assert "positive-control-failed" in {c.code for c in result.verdict.causes}


def test_a_search_without_time_clears_nothing() -> None:
    result = audit(
        seeded_mlp(0.25), photographs(2), DropoutInversion(), budget=Budget(seconds=0.5)
    )
    assert result.attacks["dropout_inversion"].state == "stopped"
    assert result.verdict.exit_code in (1, 3)
    assert result.verdict.word != "no leak found"


def test_a_zero_gradient_is_a_finding_and_no_verdict() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.constant_(model[1].bias, -1000)  # type: ignore[arg-type]
    nn.init.zeros_(model[3].weight)  # type: ignore[arg-type]
    model[3].requires_grad_(False)
    result = audit(model, photographs(1), DropoutInversion(schedule=QUICK))
    assert "zero-gradient" in {f.code for f in result.record.inventory.findings}
    assert result.verdict.word == "inconclusive"


def test_labels_can_be_optimised_too() -> None:
    result = audit(
        seeded_mlp(0.0),
        photographs(1),
        InvertingGradients(schedule=QUICK),
        knowledge=Knowledge(labels="joint"),
    )
    found = result.attacks["inverting_gradients"]
    assert found.record.label_accuracy == 1.0
    assert (found.scores["ssim"][0].value or 0) > 0.8


def test_the_diagnostic_never_decides_and_says_so(tmp_path: Path) -> None:
    result = audit(seeded_mlp(0.25), photographs(1), WellInformed(schedule=QUICK))
    assert result.verdict.word == "not run"
    assert result.attacks["well_informed"].record.evidence.diagnostic
    page = result.save(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "iagnostic" in page


def test_the_search_is_in_the_record() -> None:
    result = audit(seeded_mlp(0.25), photographs(1), DropoutInversion(schedule=QUICK))
    record = result.attacks["dropout_inversion"].record
    assert record.loss_truth == pytest.approx(0, abs=1e-5)
    assert record.loss_final is not None
    assert record.loss_start is not None
    assert record.loss_final < 0.2 * record.loss_start
    assert record.iterations == 400
    assert record.curve[-1].iteration == 400
    assert [i.iteration for i in record.iterates] == [0, 10, 30, 100, 300]
    assert all(result.images.get(i.image) for i in record.iterates)
    assert record.mask_mmd == pytest.approx(
        sum(m.mmd for m in record.masks) / len(record.masks)
    )
