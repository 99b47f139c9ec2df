"""Known answers: the verdict must hold, whatever else changes."""

from __future__ import annotations

import pytest

from privaudit import Auditor, Budget, Client, Knowledge
from privaudit import _ladder as ladder
from privaudit.result import AuditResult
from tests.reference.bank import BANK, Known

LEAKY = [k for k in BANK if k.word == "leaks"]
SILENT = [k for k in BANK if k.word is None]


def audit(known: Known, labels: str = "known", count: int = 1) -> AuditResult:
    auditor = Auditor(
        known.model(),
        mean=known.mean,
        std=known.std,
        client=Client(batch_size=1),
        knowledge=Knowledge.model_validate({"labels": labels}),
        budget=Budget(seconds=60, iterations=20, restarts=1),
    )
    return auditor.audit(known.sample(count))


def codes(result: AuditResult) -> set[str]:
    return {f.code for f in result.record.inventory.findings}


@pytest.mark.parametrize("known", LEAKY, ids=lambda k: k.name)
@pytest.mark.parametrize("labels", ["known", "inferred"])
def test_what_leaks_is_found_to_leak(known: Known, labels: str) -> None:
    result = audit(known, labels, count=2)
    attack = result.attacks["closed_form"]
    assert result.verdict.word == "leaks"
    assert result.verdict.exit_code == 1
    assert not result.passed()
    assert attack.state == "exact"
    assert {o.form for o in attack.record.outcomes} == {known.form}
    assert result.worst["ssim"].value > 0.999
    assert all((s.value or 0) > 0.999 for s in attack.scores["ssim"])
    assert known.finding in codes(result)
    assert any(c.active for c in result.record.inventory.stochastic), "dropout is on"


@pytest.mark.parametrize("known", SILENT, ids=lambda k: k.name)
def test_where_nothing_can_be_known_nothing_is_claimed(known: Known) -> None:
    result = audit(known)
    assert result.verdict.word not in ("leaks", "no leak found")
    assert result.verdict.exit_code in (3, 4)
    assert not result.passed()
    assert known.finding in codes(result)
    assert "dropout-no-protection" not in codes(result)
    assert any(c.active for c in result.record.inventory.stochastic), "dropout is on"
    for attack in result.attacks.values():
        assert attack.state != "exact"


@pytest.mark.parametrize("known", SILENT, ids=lambda k: k.name)
def test_nor_by_a_ladder_of_one_rung(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps the word back must not be that other rungs are still to be built."""
    monkeypatch.setattr(ladder, "GRADIENT_LADDER", ("closed_form",))
    assert audit(known).verdict.word not in ("leaks", "no leak found")
