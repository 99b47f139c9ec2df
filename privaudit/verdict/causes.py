"""One text per cause: what happened and what to do. No prose lives elsewhere."""

from __future__ import annotations

from privaudit.verdict.evidence import AttackEvidence, Partial
from privaudit.verdict.policy import (
    MIN_CONTROL_PAIRS,
    MIN_IMAGES_FOR_RE_IDENTIFICATION,
)
from privaudit.verdict.words import PARTIAL, Cause, Worst


def no_samples() -> Cause:
    """No image was audited."""
    return Cause(
        code="no-samples",
        text="no image was audited",
        remedy="Give at least one readable image.",
    )


def interrupted(partial: Partial) -> Cause:
    """Ctrl-C ended the audit before it was through."""
    return Cause(
        code=PARTIAL,
        text=f"interrupted by hand, partial: {partial.done} of {partial.total} "
        f"images ({partial.attack} was running)",
        remedy="Audit again. With resume=FOLDER (--resume FOLDER) an audit goes on "
        "where it was interrupted; without it, it starts anew.",
    )


def no_truth() -> Cause:
    """The images of the step are not known to the audit."""
    return Cause(
        code="no-truth",
        text="the images of the step were not given: nothing could be scored",
        remedy="Pass truth=(images, labels) on the owner's machine. Without it an "
        "image that gives the whole gradient is a leak, and nothing is cleared.",
    )


def truth_not_reached(error: float, seen: str = "gradient") -> Cause:
    """Not even the true images give what was observed: the audit is void."""
    return Cause(
        code="truth-not-reached",
        text=f"at the true images the recomputed {seen} "
        + ("are" if seen == "features" else "is")
        + f" off by {error:.1e}",
        remedy="Something random or stateful in the step is not replayed, so no attack "
        "could match it: see the findings, and mend that first.",
    )


def nothing_ran(attacks: list[AttackEvidence]) -> Cause:
    """Every attack was skipped or missing."""
    listed = "; ".join(f"{a.label}: {a.reason or a.state}" for a in attacks)
    return Cause(
        code="nothing-ran",
        text="no attack ran" + (f" ({listed})" if listed else ""),
        remedy="See per attack why it did not apply; this says nothing about the "
        "model. A batch of one image is the setting most attacks apply to.",
    )


def no_required_attack() -> Cause:
    """Only optional attacks ran."""
    return Cause(
        code="no-required-attack",
        text="no attack that the verdict needs has run",
        remedy='Use attacks="auto", which climbs the whole ladder.',
    )


def incomplete(attack: AttackEvidence) -> Cause:
    """A required attack failed, was stopped, or is missing."""
    texts = {
        "failed": (
            f"{attack.label} failed: {attack.reason or 'no reason given'}",
            "Mend the cause and audit again; a broken attack is no evidence.",
        ),
        "stopped": (
            f"{attack.label} ran out of budget: {attack.reason or 'time is up'}",
            'Give more time, for example budget="thorough".',
        ),
        "missing": (
            f"{attack.label} did not run: {attack.reason or 'not available'}",
            "An attack that was not tried cannot clear the model.",
        ),
    }
    text, remedy = texts[attack.state]
    return Cause(code=f"attack-{attack.state}", text=text, remedy=remedy)


def unexplained_skip(attack: AttackEvidence) -> Cause:
    """A required attack was skipped for no allowed reason."""
    return Cause(
        code="attack-skipped",
        text=f"{attack.label} was skipped: {attack.reason or 'no allowed reason'}",
        remedy="Run it, or audit where something stronger has been exact.",
    )


def no_positive_control() -> Cause:
    """The audit did not show that it can find a leak at all."""
    return Cause(
        code="no-positive-control",
        text="no positive control was run",
        remedy="Run the audit with its control; without it a clean score is silence.",
    )


def positive_control_failed(detail: str) -> Cause:
    """The ladder did not solve a case that it must solve."""
    return Cause(
        code="positive-control-failed",
        text="the positive control failed" + (f": {detail}" if detail else ""),
        remedy="The attacks did not find a leak that is certainly there: do not "
        "trust a clean score from this run.",
    )


def unscored(attack: str, metric: str, missing: str) -> Cause:
    """A metric that decides has no value for some image."""
    return Cause(
        code="unscored",
        text=f"{metric} of {attack}: {missing}",
        remedy="An image without a score is not cleared; see the note beside it.",
    )


def controls_too_alike(metric: str, p95: float) -> Cause:
    """Unrelated images score so high that no value could count as a leak."""
    return Cause(
        code="controls-too-alike",
        text=f"unrelated images already reach {metric} {p95:.3f}",
        remedy="Audit with more varied images; these cannot tell a copy from a "
        "stranger.",
    )


def too_weak(plateaus: list[AttackEvidence]) -> Cause:
    """The policy asks for a strong result and some attack only levelled off."""
    names = ", ".join(a.label for a in plateaus) or "an attack"
    return Cause(
        code="too-weak",
        text=f"the policy requires strong evidence; {names} ended in a plateau",
        remedy="Give more budget or restarts, or accept weak evidence on purpose.",
    )


def warned(worst: Worst) -> Cause:
    """A limit that only warns was passed."""
    return Cause(
        code="limit-warning",
        text=f"{worst.metric} {worst.value:.4f} by {worst.attack} is beyond "
        f"{worst.limit:.4f} (this limit warns, it does not decide)",
        remedy="Look at the picture pair.",
    )


def limit_out_of_reach(metric: str, limit: float) -> Cause:
    """No image can be beyond this limit."""
    return Cause(
        code="limit-out-of-reach",
        text=f"the limit {limit:g} of {metric} cannot be passed: even a perfect copy "
        "scores 1",
        remedy="Choose a limit below 1; as it stands this metric gates nothing.",
    )


def within_margin(worst: Worst, limit: float) -> Cause:
    """Beyond the plain limit, but no further than strangers nearly are."""
    return Cause(
        code="within-margin",
        text=f"{worst.metric} {worst.value:.4f} by {worst.attack} is beyond {limit:g}; "
        f"only its closeness to unrelated pairs clears it (limit in force "
        f"{worst.limit:.4f})",
        remedy="Look at the picture pair, and audit with more varied images.",
    )


def inputs_skipped(skipped: int, audited: int) -> Cause:
    """Some inputs could not be read and are not part of the verdict."""
    return Cause(
        code="inputs-skipped",
        text=f"{skipped} input(s) could not be audited; the verdict is about the other "
        f"{audited}",
        remedy="See the list of skipped inputs, mend them and audit again.",
    )


def too_few_pairs(metric: str) -> Cause:
    """The margin over unrelated pairs could not be applied."""
    return Cause(
        code="too-few-pairs",
        text=f"fewer than {MIN_CONTROL_PAIRS} unrelated pairs for {metric}: its "
        "limit alone decides",
        remedy="Audit more images; without the control the limit is the stricter "
        "reading.",
    )


def too_few_images(samples: int) -> Cause:
    """Re-identification is not judged on small sets."""
    return Cause(
        code="few-images",
        text=f"re-identification is not judged below "
        f"{MIN_IMAGES_FOR_RE_IDENTIFICATION} images (here {samples})",
        remedy="Audit more images for a verdict on re-identification.",
    )


def prior_misfit(attack: str, worse_db: float) -> Cause:
    """An attack drew from a prior that does not know such images."""
    return Cause(
        code="prior-misfit",
        text=f"the prior of {attack} knows other images: it takes noise off these "
        f"{worse_db:.1f} dB worse than off its own",
        remedy="An attacker with images like yours has a better prior: train one with "
        "`privaudit prior train`, and hand it over.",
    )
