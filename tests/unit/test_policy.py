"""Limits given by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.errors import ConfigError
from privaudit.verdict import (
    AttackEvidence,
    ControlEvidence,
    Evidence,
    Policy,
    Score,
    UnrelatedPairs,
    judge,
)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ssmi.*expected one of.*ssim"):
        Policy().with_limit("ssmi", 0.5)


def test_a_limit_must_be_finite() -> None:
    with pytest.raises(ConfigError, match="expected a finite number, got nan"):
        Policy().with_limit("ssim", float("nan"))


def test_a_changed_policy_says_so_and_the_preset_stays() -> None:
    changed = Policy().with_limit("ssim", 0.3).with_limit("ssim", 0.2)
    assert changed.name == "default-1+changed"
    assert changed.limits["ssim"].limit == 0.2
    assert Policy().limits["ssim"].limit == 0.5


scores = st.lists(st.floats(-1, 1), min_size=1, max_size=8)


@given(ssim=scores, p95=st.floats(-1, 1), n=st.integers(0, 40), limit=st.floats(0, 1))
def test_a_tighter_limit_never_turns_a_leak_into_a_pass(
    ssim: list[float], p95: float, n: int, limit: float
) -> None:
    evidence = Evidence(
        samples=len(ssim),
        attacks=[
            AttackEvidence(
                label="a",
                state="exact",
                scores={"ssim": [Score(value=v) for v in ssim]},
            )
        ],
        positive_control=ControlEvidence(passed=True),
        unrelated=[UnrelatedPairs(metric="ssim", pairs=n, p95=p95)],
    )
    loose = judge(evidence, Policy().with_limit("ssim", limit))
    tight = judge(evidence, Policy().with_limit("ssim", limit / 2))
    if loose.word == "leaks":
        assert tight.word == "leaks"
    if tight.exit_code == 0:
        assert loose.exit_code == 0
