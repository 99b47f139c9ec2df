"""The rules of the verdict as one table. Later work adds rows and edits none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from privaudit.verdict import (
    AttackEvidence,
    ControlEvidence,
    Evidence,
    Limit,
    Partial,
    Policy,
    Score,
    UnrelatedPairs,
    judge,
)

PASSED = ControlEvidence(passed=True)
FAILED = ControlEvidence(passed=False, detail="ssim 0.1 on the control")
STRICT = Policy(name="strict", require="strong")


def attack(
    *ssim: float | None, label: str = "closed_form", **kw: Any
) -> AttackEvidence:
    kw.setdefault("state", "exact")
    scores = {"ssim": [Score(value=v) for v in ssim]} if ssim else {}
    scores |= kw.pop("more", {})
    return AttackEvidence(label=label, scores=scores, **kw)


def pairs(p95: float, n: int = 20, metric: str = "ssim") -> list[UnrelatedPairs]:
    return [UnrelatedPairs(metric=metric, pairs=n, p95=p95)]


def rate(value: float) -> dict[str, list[Score]]:
    return {"re_identification": [Score(value=value)]}


def match(value: float | None) -> dict[str, list[Score]]:
    return {"gradient_match": [Score(value=value)]}


def tokens(
    recall: float | None, accuracy: float | None = None
) -> dict[str, list[Score]]:
    return {
        "token_set_recall": [Score(value=recall)],
        "token_accuracy": [Score(value=accuracy)],
    }


def policy(**limits: Limit) -> Policy:
    return Policy(name="mine", limits={"ssim": Policy().limits["ssim"], **limits})


BLIND = policy(gradient_match=Limit(limit=1e-4, lower_is_leakier=True))


@dataclass
class Row:
    name: str
    attacks: list[AttackEvidence]
    word: str
    code: int
    line: str
    """A part of the final line."""
    strength: str | None = None
    samples: int = 1
    control: ControlEvidence | None = PASSED
    unrelated: list[UnrelatedPairs] = field(default_factory=lambda: pairs(0.2))
    policy: Policy = field(default_factory=Policy)
    causes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    truth: bool = True
    truth_error: float | None = None
    noise_floor: float | None = None
    skipped_inputs: int = 0
    partial: Partial | None = None
    kind: Literal["images", "tokens"] = "images"


NOT_APPLICABLE: dict[str, Any] = {"state": "skipped", "skip": "not applicable"}

ROWS = [
    # 1. nothing ran
    Row("no attack at all", [], "not run", 4, "no attack ran", causes=("nothing-ran",)),
    Row(
        "no sample",
        [attack()],
        "not run",
        4,
        "no image was audited",
        samples=0,
        causes=("no-samples",),
    ),
    Row(
        "every attack skipped",
        [attack(**NOT_APPLICABLE), attack(label="dia", **NOT_APPLICABLE)],
        "not run",
        4,
        "no attack ran",
        causes=("nothing-ran",),
    ),
    Row(
        "skipped and missing is still nothing",
        [attack(**NOT_APPLICABLE), attack(label="dia", state="missing")],
        "not run",
        4,
        "no attack ran",
        causes=("nothing-ran",),
    ),
    Row(
        "only a diagnostic ran",
        [attack(0.99, label="wiig", diagnostic=True)],
        "not run",
        4,
        "no attack ran",
        causes=("nothing-ran",),
    ),
    # 2. a leak beats everything
    Row("exact copy", [attack(1.0)], "leaks", 1, "image 0 by closed_form: ssim 1.0000"),
    Row("one of three", [attack(0.1, 0.2, 0.9)], "leaks", 1, "image 2", samples=3),
    Row(
        "leak despite a failed attack, which stays listed",
        [attack(0.9), attack(label="dia", state="failed", reason="nan")],
        "leaks",
        1,
        "ssim 0.9000 beyond limit 0.5000",
        causes=("attack-failed",),
    ),
    Row(
        "leak despite a failed control",
        [attack(0.9)],
        "leaks",
        1,
        "ssim 0.9000",
        control=FAILED,
        causes=("positive-control-failed",),
    ),
    Row(
        "leak by an attack that ran out of budget",
        [attack(0.8, state="stopped")],
        "leaks",
        1,
        "ssim 0.8000",
        causes=("attack-stopped",),
    ),
    Row(
        "leak by an attack that failed afterwards",
        [attack(0.8, state="failed")],
        "leaks",
        1,
        "ssim 0.8000",
        causes=("attack-failed",),
    ),
    Row(
        "leak by an optional attack",
        [attack(0.2), attack(0.7, label="extra", required=False)],
        "leaks",
        1,
        "by extra",
    ),
    Row(
        "a diagnostic never decides",
        [attack(0.1), attack(0.99, label="wiig", diagnostic=True)],
        "no leak found",
        0,
        "ssim 0.1000 within",
        strength="strong",
    ),
    # score → leak: limit and margin
    Row(
        "at the limit is not beyond",
        [attack(0.5)],
        "no leak found",
        0,
        "ssim 0.5000 within limit 0.5000",
        strength="strong",
    ),
    Row("just beyond", [attack(0.5001)], "leaks", 1, "beyond"),
    Row(
        "beyond the limit, but as unrelated pairs are",
        [attack(0.55)],
        "no leak found",
        0,
        "within limit 0.6000",
        strength="strong",
        unrelated=pairs(0.5),
    ),
    Row("margin reached", [attack(0.6)], "leaks", 1, "0.6000", unrelated=pairs(0.5)),
    Row(
        "too few pairs: the limit alone decides",
        [attack(0.55)],
        "leaks",
        1,
        "limit 0.5000",
        unrelated=pairs(0.5, n=19),
        warnings=("too-few-pairs",),
    ),
    Row(
        "no pairs at all",
        [attack(0.55)],
        "leaks",
        1,
        "limit 0.5000",
        unrelated=[],
        warnings=("too-few-pairs",),
    ),
    Row(
        "unrelated images as alike as copies: nothing can be said",
        [attack(0.99)],
        "inconclusive",
        3,
        "unrelated images already reach ssim 0.950",
        unrelated=pairs(0.95),
        causes=("controls-too-alike",),
    ),
    # re-identification
    Row(
        "re-identification beyond 5 x chance",
        [attack(*[0.1] * 20, more=rate(0.3))],
        "leaks",
        1,
        "all images by closed_form: re_identification 0.3000 beyond limit 0.2500",
        samples=20,
    ),
    Row(
        "re-identification at 5 x chance",
        [attack(*[0.1] * 20, more=rate(0.25))],
        "no leak found",
        0,
        "ssim 0.1000",
        strength="strong",
        samples=20,
    ),
    Row(
        "floor of .05 for large sets",
        [attack(*[0.1] * 200, more=rate(0.06))],
        "leaks",
        1,
        "limit 0.0500",
        samples=200,
    ),
    Row(
        "re-identification below 20 images only warns",
        [attack(*[0.1] * 19, more=rate(1.0))],
        "no leak found",
        0,
        "ssim",
        strength="strong",
        samples=19,
        warnings=("few-images",),
    ),
    # 3. doubts
    *(
        Row(
            f"required attack {state}",
            [attack(0.1), attack(label="dia", state=state)],
            "inconclusive",
            3,
            "dia",
            causes=(f"attack-{state}",),
        )
        for state in ("failed", "stopped", "missing")
    ),
    Row(
        "optional attack failed",
        [attack(0.1), attack(label="x", state="failed", required=False)],
        "no leak found",
        0,
        "within",
        strength="strong",
    ),
    Row(
        "only optional attacks ran",
        [attack(0.1, required=False), attack(label="dia", **NOT_APPLICABLE)],
        "inconclusive",
        3,
        "no attack that the verdict needs",
        causes=("no-required-attack",),
    ),
    Row(
        "skipped since something is exact",
        [attack(0.1), attack(label="dia", state="skipped", skip="already exact")],
        "no leak found",
        0,
        "within",
        strength="strong",
    ),
    Row(
        "claims something is exact, but nothing is",
        [
            attack(0.1, state="plateau"),
            attack(label="dia", state="skipped", skip="already exact"),
        ],
        "inconclusive",
        3,
        "dia was skipped",
        causes=("attack-skipped",),
    ),
    Row(
        "skipped without an allowed reason",
        [attack(0.1), attack(label="dia", state="skipped", reason="too slow")],
        "inconclusive",
        3,
        "too slow",
        causes=("attack-skipped",),
    ),
    Row(
        "superseded and not applicable are allowed",
        [
            attack(0.1),
            attack(label="ig", state="skipped", skip="superseded"),
            attack(label="lin", **NOT_APPLICABLE),
        ],
        "no leak found",
        0,
        "within",
        strength="strong",
    ),
    Row(
        "control failed",
        [attack(0.1)],
        "inconclusive",
        3,
        "the positive control failed: ssim 0.1",
        control=FAILED,
        causes=("positive-control-failed",),
    ),
    Row(
        "no control",
        [attack(0.1)],
        "inconclusive",
        3,
        "no positive control",
        control=None,
        causes=("no-positive-control",),
    ),
    Row(
        "an image without a score is not cleared",
        [attack(0.1, None)],
        "inconclusive",
        3,
        "no value for 1 of 2",
        samples=2,
        causes=("unscored",),
    ),
    Row(
        "a NaN is not a score",
        [attack(0.1, float("nan"))],
        "inconclusive",
        3,
        "no value for 1 of 2",
        samples=2,
        causes=("unscored",),
    ),
    Row(
        "fewer scores than images",
        [attack(0.1)],
        "inconclusive",
        3,
        "1 values for 2 images",
        samples=2,
        causes=("unscored",),
    ),
    Row(
        "no score at all",
        [attack()],
        "inconclusive",
        3,
        "ssim of closed_form: not measured",
        causes=("unscored",),
    ),
    Row(
        "a limit given by hand must be measured",
        [attack(0.1)],
        "inconclusive",
        3,
        "ms_ssim of closed_form: not measured",
        policy=Policy().with_limit("ms_ssim", 0.4),
        causes=("unscored",),
    ),
    # 4. strength
    Row(
        "converged",
        [attack(0.1, state="converged")],
        "no leak found",
        0,
        "within",
        strength="strong",
    ),
    Row(
        "plateau",
        [attack(0.1, state="plateau")],
        "no leak found",
        0,
        "within",
        strength="weak",
    ),
    Row(
        "plateau under a policy that requires strong",
        [attack(0.1, state="plateau")],
        "inconclusive",
        3,
        "requires strong",
        policy=STRICT,
        causes=("too-weak",),
    ),
    Row(
        "exact under strict",
        [attack(0.1)],
        "no leak found",
        0,
        "within",
        strength="strong",
        policy=STRICT,
    ),
    # policies
    Row(
        "a stricter limit",
        [attack(0.4)],
        "leaks",
        1,
        "limit 0.3000",
        policy=Policy().with_limit("ssim", 0.3),
    ),
    Row(
        "a limit that only warns",
        [attack(0.9)],
        "no leak found",
        0,
        "no leak found | exit 0",
        strength="strong",
        policy=policy(ssim=Limit(limit=0.5, level="warn")),
        warnings=("limit-warning",),
    ),
    Row(
        "a metric switched off",
        [attack(0.9)],
        "no leak found",
        0,
        "no leak found | exit 0",
        strength="strong",
        policy=policy(ssim=Limit(limit=0.5, level="off")),
    ),
    Row(
        "the mean may be chosen",
        [attack(0.1, 0.8)],
        "no leak found",
        0,
        "all images by closed_form: ssim 0.4500",
        strength="strong",
        samples=2,
        policy=policy(ssim=Limit(limit=0.5, over="mean")),
    ),
    Row(
        "p95 of few images is the worst",
        [attack(0.1, 0.8)],
        "leaks",
        1,
        "ssim 0.8000",
        samples=2,
        policy=policy(ssim=Limit(limit=0.5, over="p95")),
    ),
    Row(
        "p95 of forty drops the worst two",
        [attack(*[0.9, 0.8], *[0.1] * 38)],
        "no leak found",
        0,
        "ssim 0.1000",
        strength="strong",
        samples=40,
        policy=policy(ssim=Limit(limit=0.5, over="p95")),
    ),
    Row(
        "distances leak when small",
        [attack(0.1, more={"mse": [Score(value=0.001)]})],
        "leaks",
        1,
        "mse 0.0010 beyond limit 0.0100",
        policy=policy(mse=Limit(limit=0.01, lower_is_leakier=True)),
    ),
    Row(
        "a large distance is harmless",
        [attack(0.1, more={"mse": [Score(value=0.2)]})],
        "no leak found",
        0,
        "within",
        strength="strong",
        policy=policy(mse=Limit(limit=0.01, lower_is_leakier=True)),
    ),
    # a recorded gradient whose images nobody gave
    Row(
        "without truth: the whole gradient was recomputed",
        [attack(more=match(2.4e-7))],
        "leaks",
        1,
        "image 0 by closed_form: gradient_match 2.4e-07 beyond limit 1.0e-04",
        policy=BLIND,
        causes=("no-truth",),
        truth=False,
    ),
    Row(
        "without truth: not recomputed is not cleared",
        [attack(state="plateau", more=match(0.3))],
        "inconclusive",
        3,
        "the images of the step were not given",
        policy=BLIND,
        causes=("no-truth",),
        truth=False,
    ),
    Row(
        "without truth: at the limit is not beyond",
        [attack(state="plateau", more=match(1e-4))],
        "inconclusive",
        3,
        "gradient_match 1.0e-04 within limit 1.0e-04",
        policy=BLIND,
        causes=("no-truth",),
        truth=False,
    ),
    Row(
        "without truth: an exact claim that could not be recomputed clears nothing",
        [attack(more=match(None))],
        "inconclusive",
        3,
        "the images of the step were not given",
        policy=BLIND,
        causes=("no-truth",),
        truth=False,
    ),
    Row(
        "without truth: a failed attack is named as well",
        [
            attack(state="plateau", more=match(0.3)),
            attack(label="dia", state="failed", reason="nan"),
        ],
        "inconclusive",
        3,
        "the images of the step were not given",
        policy=BLIND,
        causes=("no-truth", "attack-failed"),
        truth=False,
    ),
    Row(
        "without truth: a policy without limits clears nothing either",
        [attack(more=match(0.3))],
        "inconclusive",
        3,
        "the images of the step were not given",
        policy=Policy(name="none", limits={}),
        causes=("no-truth",),
        truth=False,
    ),
    Row(
        "without truth: the preset alone knows no match and clears nothing",
        [attack(more=match(1e-9))],
        "inconclusive",
        3,
        "the images of the step were not given",
        causes=("no-truth",),
        truth=False,
    ),
    Row(
        "without truth: nothing ran",
        [attack(**NOT_APPLICABLE)],
        "not run",
        4,
        "no attack ran",
        policy=BLIND,
        causes=("nothing-ran",),
        truth=False,
    ),
    Row(
        "without truth: a diagnostic does not decide",
        [
            attack(state="plateau", more=match(0.3)),
            attack(label="wiig", diagnostic=True, more=match(1e-9)),
        ],
        "inconclusive",
        3,
        "the images of the step were not given",
        policy=BLIND,
        causes=("no-truth",),
        truth=False,
    ),
    # the audit must be able to see the truth
    Row(
        "the truth itself does not give the gradient",
        [attack(0.1)],
        "inconclusive",
        3,
        "at the true images the recomputed gradient is off by 2.0e-01",
        truth_error=0.2,
        causes=("truth-not-reached",),
    ),
    Row(
        "a truth that is not a number",
        [attack(0.1)],
        "inconclusive",
        3,
        "off by nan",
        truth_error=float("nan"),
        causes=("truth-not-reached",),
    ),
    Row(
        "a leak stays a leak where the truth is not reached",
        [attack(0.9)],
        "leaks",
        1,
        "ssim 0.9000",
        truth_error=0.2,
        causes=("truth-not-reached",),
    ),
    Row(
        "rounding at the truth is no doubt",
        [attack(0.1)],
        "no leak found",
        0,
        "within",
        strength="strong",
        truth_error=1e-3,
    ),
    Row(
        "rounding of reduced precision at the truth is no doubt",
        [attack(0.1)],
        "no leak found",
        0,
        "within",
        strength="strong",
        truth_error=0.09,
        noise_floor=0.05,
    ),
    Row(
        "more than reduced precision rounds",
        [attack(0.1)],
        "inconclusive",
        3,
        "off by 1.1e-01",
        truth_error=0.11,
        noise_floor=0.05,
        causes=("truth-not-reached",),
    ),
    Row(
        "reduced precision hides no leak",
        [attack(0.99, state="plateau")],
        "leaks",
        1,
        "ssim 0.9900",
        truth_error=0.05,
        noise_floor=0.05,
    ),
    # what is cleared, but deserves a second look
    Row(
        "a limit that nothing can pass",
        [attack(1.0)],
        "no leak found",
        0,
        "within limit 1.0000",
        strength="strong",
        policy=Policy().with_limit("ssim", 1.0),
        warnings=("limit-out-of-reach",),
    ),
    Row(
        "only the margin clears it",
        [attack(0.97)],
        "no leak found",
        0,
        "within limit 0.9800",
        strength="strong",
        unrelated=pairs(0.88),
        warnings=("within-margin",),
    ),
    Row(
        "inputs that were left out",
        [attack(0.1)],
        "no leak found",
        0,
        "within",
        strength="strong",
        skipped_inputs=2,
        warnings=("inputs-skipped",),
    ),
    # token ids: other metrics, no unrelated pairs, no margin
    Row(
        "a set of ids without an order",
        [attack(state="plateau", more=tokens(1.0))],
        "leaks",
        1,
        "worst sample 0 by closed_form: token_set_recall 1.0000 beyond limit 0.5000",
        kind="tokens",
        unrelated=[],
    ),
    Row(
        "an order alone",
        [attack(state="plateau", more=tokens(0.5, 0.51))],
        "leaks",
        1,
        "token_accuracy 0.5100 beyond limit 0.5000",
        kind="tokens",
        unrelated=[],
    ),
    Row(
        "half of the ids are within the limit",
        [attack(state="plateau", more=tokens(0.5, 0.5))],
        "no leak found",
        0,
        "within limit 0.5000",
        strength="weak",
        kind="tokens",
        unrelated=[],
    ),
    Row(
        "half of the ids, and a search that this version lacks",
        [
            attack(state="plateau", more=tokens(0.5, 0.5)),
            attack(label="token_search", state="missing"),
        ],
        "inconclusive",
        3,
        "token_search did not run",
        kind="tokens",
        unrelated=[],
        causes=("attack-missing",),
    ),
    Row(
        "nothing but padding clears nothing",
        [attack(more=tokens(None))],
        "inconclusive",
        3,
        "token_set_recall of closed_form: no value for 1 of 1",
        kind="tokens",
        unrelated=[],
        causes=("unscored",),
    ),
    Row(
        "an image limit says nothing of tokens",
        [attack(0.1, more=tokens(1.0, 1.0))],
        "leaks",
        1,
        "token_set_recall 1.0000",
        kind="tokens",
        policy=policy(),
    ),
    Row(
        "token limits say nothing of images",
        [attack(0.1)],
        "no leak found",
        0,
        "image 0 by closed_form: ssim 0.1000 within",
        strength="strong",
    ),
    Row(
        "interrupted by hand, nothing found so far",
        [attack(0.1, 0.2, None, state="stopped")],
        "inconclusive",
        3,
        "partial: 2 of 3 images (closed_form was running) | exit 3",
        samples=3,
        control=None,
        partial=Partial(attack="closed_form", done=2, total=3),
        causes=("partial",),
    ),
    Row(
        "interrupted by hand, a leak stands",
        [attack(0.9, None, state="stopped"), attack(label="dia", state="stopped")],
        "leaks",
        1,
        "beyond limit 0.5000 | interrupted by hand, partial: 1 of 2 images",
        samples=2,
        control=None,
        partial=Partial(attack="closed_form", done=1, total=2),
        causes=("partial",),
    ),
    Row(
        "interrupted by hand, though every attack was through",
        [attack(0.1)],
        "inconclusive",
        3,
        "partial: 1 of 1",
        control=None,
        partial=Partial(attack="closed_form", done=1, total=1),
        causes=("partial",),
    ),
    Row(
        "interrupted by hand, and a control that failed before",
        [attack(0.1, state="stopped")],
        "inconclusive",
        3,
        "partial: 0 of 1",
        control=FAILED,
        partial=Partial(attack="closed_form", done=0, total=1),
        causes=("partial", "positive-control-failed"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_verdict(row: Row) -> None:
    evidence = Evidence(
        samples=row.samples,
        kind=row.kind,
        partial=row.partial,
        truth_known=row.truth,
        truth_error=row.truth_error,
        noise_floor=row.noise_floor,
        skipped_inputs=row.skipped_inputs,
        attacks=row.attacks,
        positive_control=row.control,
        unrelated=row.unrelated,
    )
    verdict = judge(evidence, row.policy)
    assert verdict.word == row.word
    assert verdict.exit_code == row.code
    assert verdict.strength == row.strength
    assert row.line in verdict.line
    assert verdict.line.endswith(f"exit {row.code}")
    assert tuple(c.code for c in verdict.causes) == row.causes
    assert {*row.warnings} <= {w.code for w in verdict.warnings}
    assert all(c.text and c.remedy for c in [*verdict.causes, *verdict.warnings])


def test_the_table_is_large_enough() -> None:
    assert len(ROWS) >= 30
    assert len({r.name for r in ROWS}) == len(ROWS)


def test_rule_of_three_only_where_no_leak_was_found() -> None:
    clean = Evidence(samples=30, attacks=[attack(*[0.1] * 30)], positive_control=PASSED)
    assert judge(clean, Policy()).leaking_share_upper_bound == pytest.approx(0.1)
    leaky = clean.model_copy(update={"attacks": [attack(*[0.9] * 30)]})
    assert judge(leaky, Policy()).leaking_share_upper_bound is None


def test_margin_is_towards_the_limit() -> None:
    worst = judge(
        Evidence(samples=1, attacks=[attack(0.8)], positive_control=PASSED), Policy()
    ).worst["ssim"]
    assert worst.margin == pytest.approx(-0.3)
