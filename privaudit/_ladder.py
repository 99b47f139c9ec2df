"""Which attacks a verdict on a gradient needs, strongest and cheapest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privaudit._plugin import by_name
from privaudit.attacks import ATTACKS, TOKEN_ATTACKS, TokenAttack
from privaudit.attacks.base import Attack
from privaudit.errors import ConfigError
from privaudit.result import AttackRecord
from privaudit.verdict import AttackEvidence

GRADIENT_LADDER = ("closed_form", "sparse_factorization", "dropout_inversion")
"""Every applicable one is required for "no leak found". Names that this version does
not carry count as missing: an attack that was not tried cannot clear a model."""

TOKEN_LADDER = ("token_closed_form", "token_search")
"""The same for token ids."""

WARM: Mapping[str, Mapping[str, Any]] = {
    "dropout_inversion": {"initialisation": "analytical"}
}
"""Settings by which a rung of ``auto`` starts from what the gradient shows at once."""


def choose(attacks: str | list[Any]) -> list[Attack]:
    """The attacks to run, in ladder order.

    Args:
        attacks: ``auto``, ``all``, or names and instances.

    Raises:
        ConfigError: An unknown name, or one label twice.
    """
    if attacks == "auto":
        return [
            by_name(ATTACKS, n, WARM.get(n)) for n in GRADIENT_LADDER if n in ATTACKS
        ]
    if attacks == "all":
        rest = [n for n in ATTACKS if n not in GRADIENT_LADDER]
        ladder = [n for n in GRADIENT_LADDER if n in ATTACKS]
        return [by_name(ATTACKS, n) for n in [*ladder, *rest]]
    if isinstance(attacks, str) or not attacks:
        raise ConfigError(
            "Auditor.attacks",
            expected='"auto", "all", or a list of names and instances',
            got=repr(attacks),
            hint=f"Known names: {', '.join(ATTACKS)}.",
        )
    chosen = [a if isinstance(a, Attack) else by_name(ATTACKS, a) for a in attacks]
    _refuse_twins([a.name for a in chosen])
    return chosen


def absent(chosen: list[Attack]) -> Mapping[str, str]:
    """Ladder attacks that will not run, with the reason."""
    names = {a.name for a in chosen}
    return {
        name: (
            "left out by attacks="
            if name in ATTACKS
            else "not part of this version of privaudit"
        )
        for name in GRADIENT_LADDER
        if name not in names
    }


def not_run(chosen: Sequence[Attack], ran: Mapping[str, bool]) -> list[AttackRecord]:
    """Ladder attacks without a run: superseded by an exact one, or missing.

    Args:
        chosen: What was to run.
        ran: What did, and whether it was exact for every client.
    """
    exact = any(ran.values())
    reasons = {a.name: "already exact" for a in chosen if a.name not in ran}
    reasons |= absent(list(chosen))
    return [
        AttackRecord(
            evidence=AttackEvidence(
                label=name,
                state="skipped" if exact else "missing",
                skip="already exact" if exact else None,
                reason="another attack is already exact" if exact else reason,
            ),
            title=name.replace("_", " ").capitalize(),
        )
        for name, reason in sorted(reasons.items(), key=_rung)
    ]


def choose_for_tokens(attacks: str | list[Any]) -> list[TokenAttack]:
    """The attacks on token ids.

    Args:
        attacks: What the Auditor was told: ``auto`` or ``all``.

    Raises:
        ConfigError: A list, which names attacks on images.
    """
    if isinstance(attacks, str):
        return [by_name(TOKEN_ATTACKS, name) for name in TOKEN_ATTACKS]
    raise ConfigError(
        "Auditor.attacks",
        expected='"auto" or "all", since the sample is token ids',
        got=", ".join(map(str, attacks)),
        hint="The attacks named work on images and cannot search ids.",
    )


def absent_for_tokens() -> Mapping[str, str]:
    """Token attacks of the ladder that this version lacks, with the reason."""
    reason = "not part of this version of privaudit"
    return {name: reason for name in TOKEN_LADDER if name not in TOKEN_ATTACKS}


def _rung(entry: tuple[str, str]) -> int:
    """Place on the ladder; what is not on it comes last."""
    name = entry[0]
    known = name in GRADIENT_LADDER
    return GRADIENT_LADDER.index(name) if known else len(GRADIENT_LADDER)


def _refuse_twins(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                "Auditor.attacks",
                expected="unique labels",
                got=f"{name!r} {names.count(name)} times",
                hint="Run the variants in separate audits.",
            )
