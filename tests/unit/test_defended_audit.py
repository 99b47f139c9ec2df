"""Audits behind defenses: stated, found, answered, told of; none left out silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, AuditResult, Budget
from privaudit.countermeasures import ReorderTokens
from privaudit.defenses import (
    Disco,
    GaussianNoise,
    GradientPruning,
    LargerBatch,
    NoPeek,
    Quantisation,
    TokenShuffle,
    Undefended,
)
from privaudit.errors import ConfigError
from privaudit.exposure import GradientExposure
from privaudit.exposure.client_step import defended
from privaudit.types import Batch
from tests.contract.feature_cases import photographs
from tests.models.vit import small_vit

BUDGET = Budget(iterations=30, seconds=60)
IMAGES = photographs(2)


def cut(**settings: Any) -> Auditor:
    given = {"attacks": ["rmle"], "budget": BUDGET, "mean": 0.5, "std": 0.25}
    return Auditor(small_vit().eval(), split="layers.0", **{**given, **settings})


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(768, 48), nn.Sigmoid(), nn.Linear(48, 4)
        )


def labels_of(result: AuditResult) -> list[str]:
    ran = [a for a in result.record.attacks if a.evidence.state != "missing"]
    return [a.evidence.label for a in ran]


@pytest.fixture(scope="module")
def shuffled() -> AuditResult:
    return cut(defenses=[TokenShuffle()]).audit(IMAGES)


def test_what_was_stated_is_answered_and_the_naive_attack_runs_too(
    shuffled: AuditResult,
) -> None:
    assert labels_of(shuffled) == ["rmle+reorder_tokens", "rmle"]
    knowing, naive = shuffled.record.attacks[:2]
    assert knowing.countermeasures == ["reorder_tokens"]
    assert knowing.defense == naive.defense == "token_shuffle"
    assert naive.countermeasures == []
    assert "of places right" in " ".join(knowing.countermeasure_notes) or (
        knowing.countermeasure_notes
    )
    (given,) = shuffled.record.config.defenses
    assert given.name == "token_shuffle"
    (found,) = shuffled.record.inventory.detections
    assert found.defense == "token_shuffle"
    assert "stated by the user; " in found.evidence  # and seen, too


def test_the_reader_is_told(shuffled: AuditResult, tmp_path: Path) -> None:
    knows = " ".join(shuffled.record.threat_model.knows)
    assert "went through: token_shuffle" in knows
    assert "reorder_tokens" in knows
    codes = [f.code for f in shuffled.record.inventory.findings]
    assert "defense" in codes
    page = shuffled.save(tmp_path / "r.html").read_text()
    assert "Defenses between client and attacker" in page
    assert "What it leaves open" in page
    assert "rmle+reorder_tokens" in page


def test_the_preflight_looks_at_what_no_defense_has_changed(
    shuffled: AuditResult,
) -> None:
    error = shuffled.record.preflight.loss_at_truth
    assert error is not None
    assert error < 1e-5


def test_the_naive_attacker_does_not_know_and_the_reader_is_told_so() -> None:
    result = cut(defenses=[TokenShuffle()], countermeasures="none").audit(IMAGES[:1])
    assert labels_of(result) == ["rmle"]
    assert "went through" in " ".join(result.record.threat_model.does_not_know)


def test_countermeasures_by_name_and_by_instance() -> None:
    named = cut(defenses=[TokenShuffle()], countermeasures=["match_tokens"])
    assert labels_of(named.audit(IMAGES[:1]))[0] == "rmle+match_tokens"
    own = ReorderTokens(steps=10, images=16)
    given = cut(defenses=[TokenShuffle()], countermeasures=[own])
    result = given.audit(IMAGES[:1])
    assert labels_of(result)[0] == "rmle+reorder_tokens"
    assert result.record.config.countermeasures == ["reorder_tokens"]


def test_none_is_nothing() -> None:
    result = cut(defenses=[Undefended()]).audit(IMAGES[:1])
    assert labels_of(result) == ["rmle"]
    assert result.record.inventory.detections == []
    assert result.record.config.defenses == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"defenses": ["token_shuffle"]}, "instances of Defense"),
        ({"defenses": [GradientPruning()]}, "a defense of features"),
        ({"defenses": [Disco()]}, "disco"),
        ({"defenses": [NoPeek()]}, "nopeek"),
        ({"countermeasures": "all"}, '"auto", "none"'),
        ({"countermeasures": ["no_such"]}, "no_such"),
        ({"countermeasures": ["low_rank"]}, "countermeasures of features"),
    ],
)
def test_what_cannot_be_applied_is_refused_at_once(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        cut(**settings)


def test_defenses_of_images_do_not_pass_for_those_of_text() -> None:
    model = nn.Sequential(nn.Embedding(11, 8), nn.Flatten(), nn.Linear(32, 3))
    auditor = Auditor(model, defenses=[GradientPruning()])
    with pytest.raises(ConfigError, match="none: the sample is token ids"):
        auditor.audit((torch.randint(0, 11, (2, 4)), torch.tensor([0, 1])))


def test_recorded_features_show_levels_that_nobody_stated() -> None:
    auditor = cut()
    with auditor.open_features(IMAGES) as session:
        plain = torch.cat([r.observation.features for r in session.requests()])
    layout = session.exposure.layout
    draws = torch.Generator()
    coarse = Quantisation(bits=3)
    sent = torch.cat(
        [coarse.apply_features(x, layout, draws) for x in torch.split(plain, 1)]
    )
    result = auditor.attack_features(sent, truth=IMAGES)
    assert labels_of(result) == ["rmle+quantisation_cells", "rmle"]
    (found,) = result.record.inventory.detections
    assert found.defense == "quantisation"
    assert found.estimate["bits"] == 3


def step(defenses: list[Any], model: nn.Module) -> dict[str, Tensor]:
    exposure = GradientExposure(
        Auditor(model, mean=0.5, std=0.25)._subject.normalisation
    )
    batch = Batch(IMAGES[:1], torch.tensor([1]))
    made = exposure.observe(model, batch, seed=0)
    made = defended(made, defenses, exposure=exposure, model=model, batch=batch, seed=0)
    return dict(made.observation.gradients)


def test_a_recorded_update_that_was_pruned_is_no_broken_one() -> None:
    model = mlp()
    auditor = Auditor(model, mean=0.5, std=0.25, attacks=["closed_form"], budget=BUDGET)
    update = step([GradientPruning(ratio=0.5)], model)
    result = auditor.attack_gradient(
        update, batch_size=1, truth=(IMAGES[:1], torch.tensor([1]))
    )
    assert result.record.preflight.loss_at_truth is None
    assert "which that explains" in " ".join(result.record.preflight.notes)
    assert "loss-at-truth" not in [f.code for f in result.record.inventory.findings]
    assert labels_of(result)[0] == "closed_form+low_rank+surviving_entries"
    assert result.verdict.word == "leaks"


def test_without_the_truth_the_record_says_what_was_answered() -> None:
    model = mlp()
    auditor = Auditor(model, mean=0.5, std=0.25, attacks=["closed_form"], budget=BUDGET)
    result = auditor.attack_gradient(
        step([GradientPruning(ratio=0.5)], model), batch_size=1,
        truth=(None, torch.tensor([1])), image_shape=(3, 16, 16),
    )  # fmt: skip
    label = "closed_form+low_rank+surviving_entries"
    assert labels_of(result)[0] == label
    assert result.record.attacks[0].defense == "gradient_pruning"
    guess = result.attacks[label].reconstructions
    assert float((guess - IMAGES[:1]).square().mean()) < 1e-3
    assert result.verdict.word == "inconclusive"


def test_a_recorded_update_of_another_image_is_still_a_broken_one() -> None:
    model = mlp()
    auditor = Auditor(model, mean=0.5, std=0.25, attacks=["closed_form"], budget=BUDGET)
    update = step([GradientPruning(ratio=0.5)], model)
    result = auditor.attack_gradient(
        update, batch_size=1, truth=(IMAGES[1:], torch.tensor([1]))
    )
    assert result.record.preflight.loss_at_truth is not None
    assert "loss-at-truth" in [f.code for f in result.record.inventory.findings]


def test_a_larger_batch_is_a_defense_like_others() -> None:
    auditor = Auditor(
        mlp(), attacks=["closed_form"], budget=BUDGET,
        defenses=[LargerBatch(batch_size=2)],
    )  # fmt: skip
    assert auditor.config.client.batch_size == 2


def test_several_act_in_their_order() -> None:
    both = [TokenShuffle(), GaussianNoise(noise_std=0.2)]
    result = cut(defenses=both).audit(IMAGES[:1])
    assert labels_of(result)[0] == "rmle+noise_floor+reorder_tokens"
    assert result.record.attacks[0].defense == "token_shuffle, gaussian_noise"


def test_an_inventory_names_defenses_without_an_attack() -> None:
    found = cut(defenses=[TokenShuffle()]).inventory(IMAGES)
    assert [d.defense for d in found.detections] == ["token_shuffle"]
    assert cut().inventory(IMAGES).detections == []
    behind = Auditor(mlp(), mean=0.5, std=0.25, defenses=[GradientPruning(ratio=0.9)])
    (seen,) = behind.inventory((IMAGES[:1], torch.tensor([1]))).detections
    assert seen.defense == "gradient_pruning"
    assert "are zero where" in seen.evidence


class Shuffling(nn.Module):
    """A client part of the user's own that shuffles, which nobody stated."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 4, 4)
        self.place = nn.Parameter(3 * torch.randn(16, 32))

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.first(x).flatten(2).transpose(1, 2) + self.place
        return tokens[:, torch.randperm(16)]


def test_a_shuffle_inside_the_users_client_is_found() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        client = Shuffling().eval()
        server = nn.Sequential(nn.Flatten(), nn.Linear(512, 4)).eval()
    auditor = Auditor(None, split=(client, server), mean=0.5, std=0.25)
    found = auditor.inventory(IMAGES).detections
    assert "token_shuffle" in [d.defense for d in found]
