"""The settings of an audit without the truth: labels read off, a match is a leak."""

from __future__ import annotations

from privaudit._session import Session
from privaudit.attacks._forms import EXACT
from privaudit.config import AuditConfig, Knowledge
from privaudit.verdict import GRADIENT_MATCH, Limit, Policy, above_noise


def blind_config(config: AuditConfig, *, labels_given: bool) -> AuditConfig:
    """Labels that nobody gave are read off."""
    if labels_given:
        return config
    return config.model_copy(update={"knowledge": Knowledge(labels="inferred")})


def blind_limit(session: Session) -> AuditConfig:
    """A match of the gradient is a leak, up to what the client's precision rounds."""
    limit = above_noise(EXACT, session.precision.noise_floor)
    policy = _blind_policy(session.config.policy, limit)
    return session.config.model_copy(update={"policy": policy})


def _blind_policy(policy: Policy, highest: float) -> Policy:
    if GRADIENT_MATCH in policy.limits:
        return policy
    limit = Limit(limit=highest, lower_is_leakier=True)
    limits = {**policy.limits, GRADIENT_MATCH: limit}
    name = f"{policy.name}+{GRADIENT_MATCH}"
    return policy.model_copy(update={"name": name, "limits": limits})
