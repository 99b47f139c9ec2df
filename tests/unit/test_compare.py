"""Defenses side by side: both attackers, worth and price; kept, resumed, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, Budget
from privaudit.auditor import Auditor as Facade
from privaudit.defenses import (
    Defense,
    GaussianNoise,
    GradientPruning,
    LargerBatch,
    TokenShuffle,
    Undefended,
)
from privaudit.errors import ConfigError, ReportError
from privaudit.study.compare import DefenseStudy
from privaudit.study.compare_result import (
    Attacked,
    ComparisonResult,
    DefenseRow,
    answer,
    sentence,
)
from privaudit.study.federated import FederatedTraining
from privaudit.study.utility import accuracy, what_of
from tests.contract.feature_cases import photographs
from tests.models.vit import small_vit

BUDGET = Budget(iterations=40, seconds=60)
IMAGES = photographs(3)
LABELS = torch.tensor([0, 1, 2])


def cut_vit() -> Facade:
    return Auditor(
        small_vit().eval(), split="layers.0", mean=0.5, std=0.25,
        attacks=["linear_inverse", "rmle"], budget=BUDGET,
    )  # fmt: skip


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 256, 32), nn.Sigmoid(), nn.Linear(32, 4)
        )


def rows_of(study: DefenseStudy) -> dict[str, DefenseRow]:
    return {r.label: r for r in study.result.rows}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[DefenseStudy, Path]:
    place = tmp_path_factory.mktemp("compare")
    worth = accuracy([(IMAGES, LABELS)], mean=0.5, std=0.25)
    study = cut_vit().compare_defenses(
        IMAGES, [Undefended(), TokenShuffle(), GaussianNoise(noise_std=0.5)],
        utility=worth, out=place,
    )  # fmt: skip
    return study, place


def test_each_row_has_both_attackers_worth_and_price(
    kept: tuple[DefenseStudy, Path],
) -> None:
    study, _ = kept
    assert study.result.complete, [r.error for r in study.result.rows]
    rows = rows_of(study)
    assert set(rows) == {"none", "token_shuffle", "gaussian_noise(noise_std=0.5)"}
    for row in rows.values():
        assert row.naive is not None
        assert row.adaptive is not None
        assert row.utility is not None
        assert 0 <= row.utility <= 1
        assert row.cost_ms is not None
        assert row.bytes_sent == row.bytes_undefended == 17 * 4 * 96
    base = rows["none"]
    assert base.naive is not None
    assert base.naive.ssim_worst == pytest.approx(1, abs=1e-3)
    assert base.cost_ms == 0
    assert not base.answered


def test_a_shuffle_only_stops_the_attacker_who_does_not_know(
    kept: tuple[DefenseStudy, Path],
) -> None:
    row = rows_of(kept[0])["token_shuffle"]
    assert row.naive is not None
    assert row.adaptive is not None
    assert row.answered
    assert row.adaptive.countermeasures
    assert (row.naive.ssim_worst or 0) < 0.3
    assert (row.adaptive.ssim_worst or 0) > (row.naive.ssim_worst or 0) + 0.2


def test_the_same_call_goes_on_where_it_stopped(
    kept: tuple[DefenseStudy, Path],
) -> None:
    first, place = kept
    worth = accuracy([(IMAGES, LABELS)], mean=0.5, std=0.25)
    again = cut_vit().compare_defenses(
        IMAGES, [Undefended(), TokenShuffle(), GaussianNoise(noise_std=0.5)],
        utility=worth, out=place,
    )  # fmt: skip
    assert again.computed == 0
    assert again.result.rows == first.result.rows
    assert again.pictures.keys() == first.pictures.keys()


def test_the_page_shows_numbers_pictures_and_words(
    kept: tuple[DefenseStudy, Path], tmp_path: Path
) -> None:
    study, _ = kept
    study.save(tmp_path / "all")
    page = (tmp_path / "all" / "report.html").read_text()
    assert "token_shuffle" in page
    assert page.count("data:image/png") >= 3 * 3
    assert 'class="adaptive"' in page
    assert "accuracy (higher is better)" in page
    written = json.loads((tmp_path / "all" / "report.json").read_text())
    assert ComparisonResult.model_validate(written) == study.result
    text = (tmp_path / "all" / "report.md").read_text()
    assert all(sentence(r, study.result) in text for r in study.result.rows)
    assert study.save(tmp_path / "one.html").read_text() == page
    with pytest.raises(ReportError, match=r"\.pptx"):
        study.save(tmp_path / "one.pptx")


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    calls: list[int] = []

    def stops(model: nn.Module) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return 0.5

    given: Sequence[Defense] = [Undefended(), TokenShuffle(), GaussianNoise()]
    first = cut_vit().compare_defenses(IMAGES[:1], given, utility=stops, out=tmp_path)
    assert first.result.interrupted
    whole, cut, never = first.result.rows
    assert whole.complete
    assert whole.utility == 0.5
    assert "interrupted" in cut.error
    assert "interrupted before it" in never.error
    assert never.naive is None
    again = cut_vit().compare_defenses(IMAGES[:1], given, utility=stops, out=tmp_path)
    assert again.result.complete
    assert len(calls) == 4  # the first row's was kept
    assert again.result.rows[0] == whole


@pytest.mark.parametrize(
    ("value", "words"), [(math.nan, "finite number"), (None, "a number")]
)
def test_a_bad_utility_costs_the_row_nothing_else(value: Any, words: str) -> None:
    study = cut_vit().compare_defenses(
        IMAGES[:1], [Undefended()], utility=lambda _: value
    )
    (row,) = study.result.rows
    assert words in row.error
    assert row.complete
    assert row.utility is None
    assert not study.result.complete


def test_a_utility_that_breaks_is_told() -> None:
    def broken(_: nn.Module) -> float:
        raise RuntimeError("no such file")

    study = cut_vit().compare_defenses(IMAGES[:1], [Undefended()], utility=broken)
    assert "no such file" in study.result.rows[0].error


class Halved(Defense):
    """Sends half of the channels."""

    name = "halved"
    title = "Halved"
    source = "nobody"
    exposures = frozenset({"features"})
    does_not_protect = "Nothing."

    def apply_features(self, sent: Tensor, layout: Any, generator: Any) -> Tensor:
        """Half of it."""
        return sent[..., ::2]


def test_a_defense_that_changes_the_shape_is_refused_and_others_go_on() -> None:
    study = cut_vit().compare_defenses(IMAGES[:1], [Halved(), Undefended()])
    halved, none = study.result.rows
    assert "of fewer tokens" in halved.error
    assert not halved.complete
    assert none.complete


def test_bad_lists_are_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="at least one defense"):
        cut_vit().compare_defenses(IMAGES, [])
    with pytest.raises(ConfigError, match="none"):
        cut_vit().compare_defenses(IMAGES, [Undefended(), Undefended()])
    with pytest.raises(ConfigError, match="defense of features"):
        cut_vit().compare_defenses(IMAGES, [GradientPruning()])
    with pytest.raises(ConfigError, match="lists of them"):
        cut_vit().compare_defenses(IMAGES, [["token_shuffle"]])  # type: ignore[list-item]


def test_training_data_must_be_readable_twice_and_in_range() -> None:
    batches = [(IMAGES, LABELS)]
    with pytest.raises(ConfigError, match="read again"):
        cut_vit().compare_defenses(IMAGES, [Undefended()], train_data=iter(batches))
    with pytest.raises(ConfigError, match=r"images in \[0, 1\]"):
        cut_vit().compare_defenses(
            IMAGES, [Undefended()], train_data=[(IMAGES * 4 - 2, LABELS)]
        )
    with pytest.raises(ConfigError, match="read again"):
        accuracy(iter(batches))


def test_gradients_are_compared_with_a_model_trained_behind_each() -> None:
    auditor = Auditor(mlp(), attacks=["closed_form"], budget=BUDGET)
    data = [(photographs(24), torch.arange(24) % 4)]
    study = auditor.compare_defenses(
        (IMAGES[:1], LABELS[:1]),
        [Undefended(), GradientPruning(ratio=0.9), LargerBatch(batch_size=1)],
        train_data=data, utility=accuracy(data),
        training=FederatedTraining(clients=4, rounds=5),
    )  # fmt: skip
    assert study.result.exposure == "gradient"
    for row in study.result.rows:
        assert row.complete, row.error
        assert row.utility is not None
        assert "5 rounds of 4" in row.utility_note
    rows = rows_of(study)
    base = rows["none"].naive
    assert base is not None
    assert base.ssim_worst == pytest.approx(1, abs=1e-3)


def test_without_training_data_the_utility_of_gradients_is_not_made_up() -> None:
    auditor = Auditor(mlp(), attacks=["closed_form"], budget=BUDGET)
    study = auditor.compare_defenses(
        (IMAGES[:1], LABELS[:1]), [Undefended()], utility=lambda _: 1.0
    )
    assert study.result.rows[0].utility is None
    assert "pass train_data" in study.result.rows[0].utility_note


def test_the_users_model_is_left_alone() -> None:
    model = mlp()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    data = [(photographs(8), torch.arange(8) % 4)]
    Auditor(model, attacks=["closed_form"], budget=BUDGET).compare_defenses(
        (IMAGES[:1], LABELS[:1]), [GradientPruning(ratio=0.5)], train_data=data,
        utility=accuracy(data), training=FederatedTraining(rounds=2),
    )  # fmt: skip
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def attacked(word: str, ssim: float) -> Attacked:
    return Attacked(word=word, line="", ssim_worst=ssim)


def result_of(*rows: DefenseRow) -> ComparisonResult:
    return ComparisonResult(
        privaudit="0", started="2026-01-01T00:00:00+00:00", model="M",
        exposure="features", place="l", images=1, attacks=["rmle"],
        utility="accuracy", ssim_limit=0.5, rows=list(rows),
    )  # fmt: skip


def test_recommendations_rank_only_what_was_measured() -> None:
    base = DefenseRow(
        label="none", naive=attacked("leaks", 0.9), adaptive=attacked("leaks", 0.9),
        utility=0.8, answered=False,
    )  # fmt: skip
    fools = DefenseRow(
        label="fools", naive=attacked("inconclusive", 0.1),
        adaptive=attacked("leaks", 0.8), utility=0.8,
    )  # fmt: skip
    keeps = DefenseRow(
        label="keeps", naive=attacked("no leak found", 0.2),
        adaptive=attacked("no leak found", 0.3), utility=0.6,
    )  # fmt: skip
    half = DefenseRow(label="half", naive=attacked("no leak found", 0.0))
    result = result_of(base, fools, keeps, half)
    assert [r.label for r in result.ranked] == ["keeps", "fools"]
    said = " ".join(answer(result))
    assert "No leak was found, by either attacker, behind: keeps" in said
    assert "does not know of it is stopped by: fools" in said
    assert "half" not in said
    assert "stops only the attacker who does not know" in sentence(fools, result)
    assert "accuracy 0.600 (-0.200)" in sentence(keeps, result)
    assert "not measured to the end" in sentence(half, result)


def test_an_inconclusive_row_is_never_called_clear() -> None:
    doubt = DefenseRow(
        label="doubt", naive=attacked("inconclusive", 0.1),
        adaptive=attacked("inconclusive", 0.1),
    )  # fmt: skip
    said = " ".join(answer(result_of(doubt)))
    assert "treat them as not tested" in said
    assert "no leak found" not in sentence(doubt, result_of(doubt))


def test_a_leak_by_another_metric_is_named() -> None:
    sure = Attacked(word="leaks", line="", ssim_worst=0.4, leaks={"ms_ssim": 0.67})
    row = DefenseRow(label="sign", naive=sure, adaptive=sure)
    said = sentence(row, result_of(row))
    assert "0.40 (leaks by ms_ssim 0.67)" in said
    assert "does not protect" in said


def test_another_utility_of_the_same_name_is_another_one() -> None:
    one, other = (accuracy([(x, LABELS)]) for x in (IMAGES, 1 - IMAGES))
    assert what_of(one) == what_of(accuracy([(IMAGES, LABELS)]))
    assert what_of(one) != what_of(other)
    assert what_of(lambda _: 0.5) != what_of(lambda _: 0.25)
