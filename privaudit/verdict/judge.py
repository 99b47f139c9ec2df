"""Evidence and policy in, verdict out. Pure: no clock, no file, no tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator

from privaudit.verdict import causes as say
from privaudit.verdict.evidence import (
    RAN,
    AttackEvidence,
    Evidence,
    Score,
    UnrelatedPairs,
)
from privaudit.verdict.policy import (
    CHANCE_FACTOR,
    MIN_CONTROL_PAIRS,
    MIN_IMAGES_FOR_RE_IDENTIFICATION,
    RE_IDENTIFICATION,
    TRUTH_TOLERANCE,
    Limit,
    Policy,
    Strength,
    above_noise,
)
from privaudit.verdict.words import (
    EXIT_INCONCLUSIVE,
    EXIT_LEAK,
    EXIT_NOTHING_AUDITED,
    EXIT_PASS,
    Cause,
    Verdict,
    Word,
    Worst,
    final_line,
)

_EXIT: dict[Word, int] = {
    "not run": EXIT_NOTHING_AUDITED,
    "leaks": EXIT_LEAK,
    "inconclusive": EXIT_INCONCLUSIVE,
    "no leak found": EXIT_PASS,
}
_SLACK = 1e-9


def judge(evidence: Evidence, policy: Policy) -> Verdict:
    """Turn evidence into one of four words under the limits of ``policy``.

    Rules, first match wins: nothing ran → not run; a leak → leaks; something
    required failed, stopped or missing, or no passing positive control →
    inconclusive; else no leak found, ``strong`` or ``weak``.
    """
    policy = policy.for_kind(evidence.kind)
    counted = list(_counted(evidence, policy))
    worst = _worst_per_metric(w for w, level in counted if level == "error")
    leaks = [w for w, level in counted if level == "error" and w.leaks]
    warnings = [say.warned(w) for w, level in counted if level == "warn" and w.leaks]
    warnings += _limit_warnings(evidence, policy)
    warnings += _control_warnings(evidence, policy)
    warnings += [say.prior_misfit(a, db) for a, db in evidence.misfits.items()]
    found, causes, strength = _word(evidence, policy, leaks)
    code = _EXIT[found]
    top = _headline_worst(leaks, worst)
    return Verdict(
        word=found,
        strength=strength,
        exit_code=code,
        policy=policy.name,
        samples=evidence.samples,
        worst=worst,
        leaks=leaks,
        causes=causes,
        warnings=warnings,
        leaking_share_upper_bound=_rule_of_three(found, evidence.samples),
        line=final_line(found, worst=top, code=code, causes=causes, kind=evidence.kind),
    )


def _word(
    evidence: Evidence, policy: Policy, leaks: list[Worst]
) -> tuple[Word, list[Cause], Strength | None]:
    deciding = [a for a in evidence.attacks if not a.diagnostic]
    ran = [a for a in deciding if a.state in RAN]
    if evidence.samples == 0:
        return "not run", [say.no_samples()], None
    if not ran:
        return "not run", [say.nothing_ran(deciding)], None
    causes = list(_doubts(evidence, policy, deciding, leaks=bool(leaks)))
    if leaks:
        return "leaks", causes, None
    strong = all(a.state in ("exact", "converged") for a in ran if a.required)
    strength: Strength = "strong" if strong else "weak"
    if strength == "weak" and policy.require == "strong":
        causes.append(say.too_weak([a for a in ran if a.state == "plateau"]))
    if causes:
        return "inconclusive", causes, None
    return "no leak found", [], strength


def _doubts(
    evidence: Evidence,
    policy: Policy,
    attacks: list[AttackEvidence],
    *,
    leaks: bool,
) -> Iterator[Cause]:
    """Everything that keeps a clean score from meaning "no leak found"."""
    exact = any(a.state == "exact" for a in attacks)
    required = [a for a in attacks if a.required]
    if evidence.partial is not None:
        yield say.interrupted(evidence.partial)
    if not evidence.truth_known:
        yield say.no_truth()
    error = evidence.truth_error
    if error is not None and not error <= above_noise(
        TRUTH_TOLERANCE, evidence.noise_floor
    ):
        yield say.truth_not_reached(error, evidence.exposure)
    # A leak that is exact needs no other attack; a clean score would.
    if not any(a.state in RAN for a in required) and not (leaks and exact):
        yield say.no_required_attack()
    by_hand = evidence.partial is not None
    for attack in required:
        if attack.state == "stopped" and by_hand:
            continue  # told as "partial": more time is no remedy for Ctrl-C
        if attack.state in ("failed", "stopped", "missing"):
            yield say.incomplete(attack)
        elif attack.state == "skipped" and not _allowed(attack, exact):
            yield say.unexplained_skip(attack)
    control = evidence.positive_control
    if control is None:
        if not by_hand:
            yield say.no_positive_control()
    elif not control.passed:
        yield say.positive_control_failed(control.detail)
    if evidence.truth_known:
        yield from _unscored(evidence, policy, attacks)
    yield from _controls_too_alike(evidence, policy, attacks)


def _allowed(attack: AttackEvidence, exact: bool) -> bool:
    return attack.skip is not None and (attack.skip != "already exact" or exact)


def _unscored(
    evidence: Evidence, policy: Policy, attacks: list[AttackEvidence]
) -> Iterator[Cause]:
    """A required metric without a value for some image cannot clear that image."""
    for metric, limit in policy.limits.items():
        if not limit.required or limit.level == "off":
            continue
        if metric == RE_IDENTIFICATION and not _enough_images(evidence):
            continue
        for attack in attacks:
            if attack.required and attack.state in ("exact", "converged", "plateau"):
                missing = _missing(attack, metric, evidence.samples)
                if missing:
                    yield say.unscored(attack.label, metric, missing)


def _missing(attack: AttackEvidence, metric: str, samples: int) -> str:
    scores = attack.scores.get(metric)
    if not scores:
        return "not measured"
    holes = [i for i, score in enumerate(scores) if not _finite(score)]
    if holes:
        why = scores[holes[0]].note
        return (
            f"no value for {len(holes)} of {len(scores)}, first: image {holes[0]}"
            + (f" ({why})" if why else "")
        )
    if metric != RE_IDENTIFICATION and len(scores) < samples:
        return f"{len(scores)} values for {samples} images"
    return ""


def _controls_too_alike(
    evidence: Evidence, policy: Policy, attacks: list[AttackEvidence]
) -> Iterator[Cause]:
    """Similarities stop at 1: when p95 + margin exceeds it, no score could leak."""
    for metric, limit in policy.limits.items():
        pairs = _pairs(evidence, metric)
        if limit.margin is None or pairs is None or limit.lower_is_leakier:
            continue
        beyond = any(
            _finite(score) and (score.value or 0.0) > limit.limit
            for attack in attacks
            for score in attack.scores.get(metric, [])
        )
        if limit.level == "error" and beyond and pairs.p95 + limit.margin > 1 + _SLACK:
            yield say.controls_too_alike(metric, pairs.p95)


def _counted(evidence: Evidence, policy: Policy) -> Iterator[tuple[Worst, str]]:
    """The value of every (attack, metric) that may decide, with its limit's level."""
    for attack in evidence.attacks:
        if attack.diagnostic:
            continue
        for metric, limit in policy.limits.items():
            if limit.level == "off":
                continue
            if metric == RE_IDENTIFICATION and not _enough_images(evidence):
                continue
            worst = _compare(attack, metric, limit, evidence)
            if worst is not None:
                yield worst, limit.level


def _compare(
    attack: AttackEvidence, metric: str, limit: Limit, evidence: Evidence
) -> Worst | None:
    reduced = _reduce(attack.scores.get(metric, []), limit)
    if reduced is None:
        return None
    value, sample = reduced
    in_force, leaks = _beyond(value, metric, limit, evidence)
    if metric == RE_IDENTIFICATION:
        sample = None
    return Worst(
        metric=metric,
        value=value,
        attack=attack.label,
        sample=sample,
        limit=in_force,
        leaks=leaks,
    )


def _beyond(
    value: float, metric: str, limit: Limit, evidence: Evidence
) -> tuple[float, bool]:
    """The limit in force and whether ``value`` is on the leaky side of it."""
    if metric == RE_IDENTIFICATION:
        in_force = max(limit.limit, CHANCE_FACTOR / max(evidence.samples, 1))
        return in_force, value > in_force
    sign = -1.0 if limit.lower_is_leakier else 1.0
    pairs = _pairs(evidence, metric)
    beyond = sign * value > sign * limit.limit
    if limit.margin is None or pairs is None:
        return limit.limit, beyond
    apart = pairs.p95 + sign * limit.margin
    in_force = sign * max(sign * limit.limit, sign * apart)
    return in_force, beyond and sign * (value - apart) >= -_SLACK


def _reduce(scores: list[Score], limit: Limit) -> tuple[float, int | None] | None:
    """One value of many: the leakiest, the 95th percentile, or the mean."""
    values = [(s.value, i) for i, s in enumerate(scores) if _finite(s)]
    ranked = sorted(
        ((v, i) for v, i in values if v is not None), reverse=not limit.lower_is_leakier
    )
    if not ranked:
        return None
    if limit.over == "max":
        return ranked[0]
    if limit.over == "p95":
        # Rounded towards the leaky end, so that few images never hide the worst.
        return ranked[math.floor(0.05 * len(ranked))][0], None
    return math.fsum(v for v, _ in ranked) / len(ranked), None


def _worst_per_metric(counted: Iterator[Worst]) -> dict[str, Worst]:
    worst: dict[str, Worst] = {}
    for candidate in counted:
        known = worst.get(candidate.metric)
        if known is None or _worse(candidate, known):
            worst[candidate.metric] = candidate
    return worst


def _worse(a: Worst, b: Worst) -> bool:
    if a.leaks != b.leaks:
        return a.leaks
    # Same metric, same limit: larger is leakier unless a leak sits below its limit.
    lower_is_leakier = a.leaks and a.value < a.limit
    return a.value < b.value if lower_is_leakier else a.value > b.value


def _headline_worst(leaks: list[Worst], worst: dict[str, Worst]) -> Worst | None:
    """The one value for the line: a leak if there is one, SSIM before others."""
    pool = {w.metric: worst[w.metric] for w in leaks} or worst
    return pool.get("ssim") or next(iter(pool.values()), None)


def _limit_warnings(evidence: Evidence, policy: Policy) -> Iterator[Cause]:
    """Limits that cannot be passed, and scores that only the margin clears."""
    for metric, limit in policy.limits.items():
        if limit.level == "off" or limit.lower_is_leakier:
            continue
        measured = [a for a in evidence.attacks if a.scores.get(metric)]
        if measured and limit.limit >= 1:
            yield say.limit_out_of_reach(metric, limit.limit)
        for attack in [] if metric == RE_IDENTIFICATION else measured:
            worst = _compare(attack, metric, limit, evidence)
            counted = worst is not None and not attack.diagnostic
            if counted and worst and not worst.leaks and worst.value > limit.limit:
                yield say.within_margin(worst, limit.limit)


def _control_warnings(evidence: Evidence, policy: Policy) -> list[Cause]:
    warnings = []
    for metric, limit in policy.limits.items():
        measured = any(metric in a.scores for a in evidence.attacks)
        if limit.level != "off" and limit.margin is not None and measured:
            pairs = _pairs(evidence, metric)
            if pairs is None:
                warnings.append(say.too_few_pairs(metric))
    if evidence.skipped_inputs:
        warnings.append(say.inputs_skipped(evidence.skipped_inputs, evidence.samples))
    few = 1 < evidence.samples < MIN_IMAGES_FOR_RE_IDENTIFICATION
    if few and evidence.kind == "images":
        warnings.append(say.too_few_images(evidence.samples))
    return warnings


def _pairs(evidence: Evidence, metric: str) -> UnrelatedPairs | None:
    """Unrelated pairs of ``metric``, if there are enough of them to mean anything."""
    for pairs in evidence.unrelated:
        if pairs.metric == metric and pairs.pairs >= MIN_CONTROL_PAIRS:
            return pairs
    return None


def _enough_images(evidence: Evidence) -> bool:
    return evidence.samples >= MIN_IMAGES_FOR_RE_IDENTIFICATION


def _finite(score: Score) -> bool:
    return score.value is not None and math.isfinite(score.value)


def _rule_of_three(word: Word, samples: int) -> float | None:
    return min(1.0, 3.0 / samples) if word == "no leak found" and samples else None
