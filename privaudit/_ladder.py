"""Which attacks a verdict needs, strongest and cheapest first, per exposure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from privaudit._plugin import by_name
from privaudit._runner import AnyAttack
from privaudit.attacks import (
    ATTACKS,
    FEATURE_ATTACKS,
    TOKEN_ATTACKS,
    Attack,
    FeatureAttack,
    TokenAttack,
)
from privaudit.errors import ConfigError
from privaudit.result import AttackRecord
from privaudit.verdict import AttackEvidence

TOKEN_LADDER = ("token_closed_form", "token_search")
"""For token ids."""


@dataclass(frozen=True)
class Ladder(Generic[AnyAttack]):
    """The attacks of one exposure.

    Attributes:
        names: In order; every applicable one is required for "no leak found". Names
            that this version does not carry count as missing: an attack that was not
            tried cannot clear a model.
        family: All attacks of the exposure by name.
        base: What each of them is.
        warm: Settings by which a rung of ``auto`` starts from what is known by then.
    """

    names: tuple[str, ...]
    family: Mapping[str, type[AnyAttack]]
    base: type[AnyAttack]
    warm: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def choose(self, attacks: str | Sequence[Any]) -> list[AnyAttack]:
        """The attacks to run, in ladder order.

        Args:
            attacks: ``auto``, ``all``, or names and instances.

        Raises:
            ConfigError: An unknown name, an attack on something else, or one label
                twice.
        """
        ladder: list[str] = [n for n in self.names if n in self.family]
        if attacks == "auto":
            return [by_name(self.family, n, self.warm.get(n)) for n in ladder]
        if attacks == "all":
            rest: list[str] = [n for n in self.family if n not in ladder]
            return [by_name(self.family, n) for n in [*ladder, *rest]]
        if isinstance(attacks, str) or not attacks:
            raise ConfigError(
                "Auditor.attacks",
                expected='"auto", "all", or a list of names and instances',
                got=repr(attacks),
                hint=f"Known names: {', '.join(self.family)}.",
            )
        chosen = [self._one(a) for a in attacks]
        _refuse_twins([a.name for a in chosen])
        return chosen

    def _one(self, given: Any) -> AnyAttack:
        if isinstance(given, self.base):
            return given
        if isinstance(given, str):
            return by_name(self.family, given)
        raise ConfigError(
            "Auditor.attacks",
            expected=f"names, or instances of {self.base.__name__}",
            got=type(given).__name__,
            hint="Attacks on features need split=, attacks on gradients none.",
        )

    def absent(self, chosen: Sequence[AnyAttack]) -> Mapping[str, str]:
        """Rungs that will not run, with the reason."""
        names = {a.name for a in chosen}
        return {
            name: (
                "left out by attacks="
                if name in self.family
                else "not part of this version of privaudit"
            )
            for name in self.names
            if name not in names
        }

    def not_run(
        self, chosen: Sequence[AnyAttack], ran: Mapping[str, bool]
    ) -> list[AttackRecord]:
        """Rungs without a run: superseded by an exact one, or missing.

        Args:
            chosen: What was to run.
            ran: What did, and whether it was exact for every client.
        """
        exact = any(ran.values())
        reasons = {a.name: "already exact" for a in chosen if a.name not in ran}
        reasons |= self.absent(chosen)
        return [
            AttackRecord(
                evidence=AttackEvidence(
                    label=name,
                    state="skipped" if exact else "missing",
                    skip="already exact" if exact else None,
                    reason="another attack is already exact" if exact else reason,
                    required=name not in self.family or self.family[name].required,
                ),
                title=name.replace("_", " ").capitalize(),
            )
            for name, reason in sorted(reasons.items(), key=self._rung)
        ]

    def _rung(self, entry: tuple[str, str]) -> int:
        """Place on the ladder; what is not on it comes last."""
        known = entry[0] in self.names
        return self.names.index(entry[0]) if known else len(self.names)


WARM: Mapping[str, Mapping[str, Any]] = {
    "dropout_inversion": {"initialisation": "analytical", "refine": 8}
}
GRADIENT = Ladder[Attack](
    ("closed_form", "sparse_factorization", "gauss_newton", "dropout_inversion"),
    ATTACKS,
    Attack,  # type: ignore[type-abstract]
    WARM,
)
FEATURES = Ladder[FeatureAttack](
    ("linear_inverse", "inverse_network", "ensemble", "lm", "rmle", "drag", "polish"),
    FEATURE_ATTACKS,
    FeatureAttack,  # type: ignore[type-abstract]
)
PUBLIC_IMAGES = "public_images"
GRADIENT_LADDER = GRADIENT.names
choose, absent, not_run = GRADIENT.choose, GRADIENT.absent, GRADIENT.not_run


def priors_of(chosen: Sequence[FeatureAttack]) -> set[str]:
    """Names of what an attacker on features can be handed."""
    own = [a.reads_priors for a in FEATURE_ATTACKS.values()]
    own += [a.reads_priors for a in chosen]
    return {PUBLIC_IMAGES}.union(*own)


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


def _refuse_twins(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                "Auditor.attacks",
                expected="unique labels",
                got=f"{name!r} {names.count(name)} times",
                hint="Run the variants in separate audits.",
            )
