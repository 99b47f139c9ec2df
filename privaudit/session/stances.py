"""How an attacker stands to defenses: which it knows of, what it does about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._plugin import by_name
from privaudit._runner import Stance
from privaudit.countermeasures import (
    COUNTERMEASURES,
    Countermeasure,
    SeenFeatures,
    SeenGradient,
)
from privaudit.defenses import (
    DEFENSES,
    Defense,
    Detection,
)
from privaudit.defenses.base import FEATURES, GRADIENT
from privaudit.errors import ConfigError
from privaudit.exposure import relative_error
from privaudit.inventory.records import Finding
from privaudit.result import ThreatModel
from privaudit.session.clients import Client
from privaudit.session.feature_runner import Request
from privaudit.types import (
    FeatureLayout,
    FeatureObservation,
    FeatureTarget,
    Observation,
    Target,
)
from privaudit.verdict import TRUTH_TOLERANCE

NAMED = "named by the user"
Chosen = str | Sequence[str | Countermeasure]
"""``auto``, ``none``, or names and instances."""
Answers = Sequence[tuple[Countermeasure, Detection]]


def answers(detections: Sequence[Detection], chosen: Chosen, exposure: str) -> Answers:
    """The countermeasures that run, each with what it answers, in their order.

    Args:
        detections: What the attacker knows of.
        chosen: ``auto``, ``none``, or names and instances.
        exposure: ``features`` or ``gradient``.

    Raises:
        ConfigError: An unknown name, or one of another exposure.
    """
    if chosen == "none":
        return []
    if isinstance(chosen, str) and chosen != "auto":
        raise ConfigError(
            "Auditor.countermeasures",
            expected='"auto", "none", or a list of names and instances',
            got=repr(chosen),
            hint=f"Known names: {', '.join(COUNTERMEASURES)}.",
        )
    picked = _default(exposure) if chosen == "auto" else _named(chosen, exposure)
    pairs = []
    for one in picked:
        fitting = [d for d in detections if d.defense in one.against]
        if fitting:
            pairs.append((one, fitting[0]))
        elif chosen != "auto":
            blank = Detection(
                defense=min(one.against, default=""), confidence=1.0, evidence=NAMED
            )
            pairs.append((one, blank))
    return sorted(pairs, key=lambda p: p[0].rank)


def _default(exposure: str) -> list[Countermeasure]:
    return [
        c() for c in COUNTERMEASURES.values()
        if c.by_default and exposure in c.exposures
    ]  # fmt: skip


def _named(chosen: Chosen, exposure: str) -> list[Countermeasure]:
    found: list[Countermeasure] = []
    for one in chosen:
        made: Any = by_name(COUNTERMEASURES, one) if isinstance(one, str) else one
        fits = isinstance(made, Countermeasure) and exposure in made.exposures
        if not fits:
            raise ConfigError(
                "Auditor.countermeasures",
                expected=f"countermeasures of {exposure}",
                got=str(one),
                hint="Those of features need split=, those of gradients none.",
            )
        found.append(made)
    return found


@dataclass(frozen=True, eq=False)
class Defended:
    """What stands in between, and what the attacker does about it.

    Attributes:
        defenses: In the order in which they act.
        countermeasures: ``auto``, ``none``, or names and instances.
        naive_too: Attack without any of them as well: a countermeasure may be wrong,
            and the worse of both counts.
    """

    defenses: Sequence[Defense] = ()
    countermeasures: Chosen = "auto"
    naive_too: bool = True


UNDEFENDED = Defended()


def in_slots(
    seen: FeatureObservation, wanted: Sequence[int], layout: FeatureLayout
) -> FeatureObservation:
    """Features with as many tokens as the model makes: zeros stand for dropped ones.

    Raises:
        ConfigError: A defense changed the shape in another way.
    """
    features, shape = seen.features, tuple(wanted[1:])
    if features.shape[1:] == shape:
        return seen
    if layout.kind == "tokens" and features.shape[2:] == shape[1:]:
        missing = shape[0] - features.shape[1]
        if missing > 0:
            return replace(seen, features=F.pad(features, (0, 0, 0, missing)))
    raise ConfigError(
        "Auditor.defenses",
        expected=f"features of shape {shape} an image, or of fewer tokens",
        got=f"{tuple(features.shape[1:])}",
        hint="A defense must keep the shape of what is sent; it may drop tokens.",
    )


def about_defenses(
    detections: Sequence[Detection], views: Sequence[FeatureView | GradientView]
) -> list[Finding]:
    """What a reader must know of the defenses, and of what was done about them."""
    used = [c for v in views for c in v.stance.countermeasures]
    found = []
    for one in detections:
        known_as = DEFENSES.get(one.defense)
        title = one.defense if known_as is None else known_as.title
        limits = "" if known_as is None else f" {known_as.does_not_protect}"
        done = (
            f"The attacks answer it: {', '.join(used)}."
            if used
            else "No countermeasure answers it here."
        )
        certain = f"confidence {one.confidence:.2f}"
        found.append(
            Finding(
                code="defense",
                severity="info",
                where="what is sent",
                title=f"Defense: {title}",
                text=f"{one.evidence} ({certain}).{limits} {done}",
                remedy="compare_defenses shows what it buys against an attacker who "
                "knows of it, and what it costs.",
            )
        )
    return found


def with_stance(threat: ThreatModel, stance: Stance) -> ThreatModel:
    """The threat model, with what the strongest attacker knows of defenses."""
    if stance.defense is None:
        return threat
    if not stance.countermeasures:
        said = f"that what it sees went through: {stance.defense}"
        listed = [*threat.does_not_know, said]
        return threat.model_copy(update={"does_not_know": listed})
    said = f"that what it sees went through: {stance.defense}"
    listed = [
        *threat.knows,
        f"{said}; it answers by {', '.join(stance.countermeasures)}",
    ]
    return threat.model_copy(update={"knows": listed})


@dataclass(frozen=True, eq=False)
class FeatureView:
    """What one kind of attacker on features works with.

    Attributes:
        target: Model and cut.
        requests: What devices sent, as this attacker looks at it.
        stance: How it stands to defenses.
    """

    target: FeatureTarget
    requests: Sequence[Request]
    stance: Stance


def feature_views(
    target: FeatureTarget,
    requests: Sequence[Request],
    detections: Sequence[Detection],
    defended: Defended,
    *,
    seed: int,
) -> list[FeatureView]:
    """The attackers that an audit stands for: the one who knows first."""
    pairs = answers(detections, defended.countermeasures, FEATURES)
    defense = _words(detections)
    naive = FeatureView(target, requests, Stance(defense))
    if not pairs:
        return [naive]
    sent = torch.cat([r.observation.features for r in requests])
    shape = requests[0].observation.image_shape
    own = replace(target, memory={})
    seen = SeenFeatures(own, FeatureObservation(sent, shape))
    for number, (one, found) in enumerate(pairs):
        draws = torch.Generator().manual_seed(seed + number)
        seen = one.see_features(seen, found, draws)
    rows = torch.split(seen.observation.features, 1)
    looked_at = [
        replace(r, observation=FeatureObservation(row, shape))
        for r, row in zip(requests, rows, strict=True)
    ]
    stance = Stance(defense, tuple(c.name for c, _ in pairs), seen.notes)
    knowing = FeatureView(seen.target, looked_at, stance)
    return [knowing, naive] if defended.naive_too else [knowing]


@dataclass(frozen=True, eq=False)
class GradientView:
    """What one kind of attacker on gradients works with, for every client.

    Attributes:
        target: Model, exposure and knowledge, before any client is looked at.
        answers: The countermeasures, each with what it answers.
        stance: How it stands to defenses.
        seed: Of the countermeasures' draws.
    """

    target: Target
    answers: Answers
    stance: Stance
    seed: int

    def aimed(self, target: Target, client: Client) -> tuple[Target, Client]:
        """Target and client as the countermeasures make them for one client."""
        seen = self.seen(target, client.step.observation)
        step = replace(client.step, observation=seen.observation)
        return seen.target, replace(client, step=step)

    def seen(self, target: Target, observation: Observation) -> SeenGradient:
        """What attacks are given of one observation."""
        seen = SeenGradient(target, observation)
        for number, (one, found) in enumerate(self.answers):
            draws = torch.Generator().manual_seed(self.seed + number)
            seen = one.see_gradient(seen, found, draws)
        return seen


def gradient_views(
    target: Target,
    first: Client,
    detections: Sequence[Detection],
    defended: Defended,
    *,
    seed: int,
) -> list[GradientView]:
    """See :func:`feature_views`; ``first`` is the client whose numbers are told."""
    pairs = answers(detections, defended.countermeasures, GRADIENT)
    defense = _words(detections)
    naive = GradientView(target, [], Stance(defense), seed)
    if not pairs:
        return [naive]
    own = replace(target, memory={})
    seen = GradientView(own, pairs, Stance(), seed).seen(own, first.step.observation)
    stance = Stance(defense, tuple(c.name for c, _ in pairs), seen.notes)
    knowing = GradientView(own, pairs, stance, seed)
    return [knowing, naive] if defended.naive_too else [knowing]


def _words(detections: Sequence[Detection]) -> str | None:
    return ", ".join(d.defense for d in detections) if detections else None


def error_behind(
    view: GradientView, client: Client, model: nn.Module
) -> tuple[float, float]:
    """How far the gradient at the truth is off, as an attacker compares it.

    Returns:
        The relative error, and how much of it the noise that was found may explain.
    """
    target, seen = view.aimed(view.target, client)
    guess: Mapping[str, Tensor] = target.exposure.gradient(
        model, client.batch, tape=client.step.tape
    )
    sent = seen.step.observation.gradients
    for compare in target.comparisons:
        guess, sent = compare(guess, sent)
    reach = max(TRUTH_TOLERANCE, 2 * math.sqrt(target.noise_share))
    return relative_error(guess, sent), reach
