"""Which defenses an attacker knows of: those it is told of, and those that show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit.defenses import (
    DEFENSES,
    Defense,
    Detection,
    FeatureEvidence,
    GradientEvidence,
)
from privaudit.types import FeatureObservation, FeatureTarget, Observation

REFERENCES = 32
"""Images of the attacker's own that it compares with what was sent."""
STATED = "stated by the user"


def stated(defenses: Sequence[Defense]) -> list[Detection]:
    """What the user says stands in between: the attacker is told of it."""
    return [d.declared() for d in defenses]


def found_in_features(seen: FeatureEvidence) -> list[Detection]:
    """Every defense's look at the evidence that had something to say."""
    looks = [d.detect_features(seen) for d in DEFENSES.values()]
    return _sure_first([one for one in looks if one is not None])


def found_in_gradient(seen: GradientEvidence) -> list[Detection]:
    """Every defense's look at the evidence that had something to say."""
    looks = [d.detect_gradient(seen) for d in DEFENSES.values()]
    return _sure_first([one for one in looks if one is not None])


def _sure_first(found: list[Detection]) -> list[Detection]:
    return sorted(found, key=lambda d: -d.confidence)


def known(told: Sequence[Detection], found: Sequence[Detection]) -> list[Detection]:
    """What the attacker goes by: all that was stated, and what else was found.

    Of a defense that was both, the statement with the estimates that it lacks.
    """
    by_defense = {d.defense: d for d in found}
    merged = []
    for one in told:
        other = by_defense.get(one.defense)
        extra = {} if other is None else other.estimate
        seen = "" if other is None or not other.found else f"; {other.evidence}"
        merged.append(
            one.model_copy(
                update={
                    "estimate": {**extra, **one.estimate},
                    "evidence": one.evidence + seen,
                }
            )
        )
    names = {d.defense for d in told}
    return [*merged, *(d for d in found if d.found and d.defense not in names)]


def feature_detections(
    target: FeatureTarget,
    sent: FeatureObservation,
    again: Tensor | None,
    defenses: Sequence[Defense],
) -> list[Detection]:
    """Defenses that the attacker knows of: those stated, and those that show.

    Args:
        target: Model and cut.
        sent: What devices sent of some images.
        again: The same once more; None: it was recorded elsewhere.
        defenses: What the user states.
    """
    images = shipped_images(REFERENCES, sent.image_shape).to(sent.features.device)
    with torch.no_grad():
        reference = target.exposure.predict(target.model, images).float()
    seen = FeatureEvidence(sent.features, again, reference, target.exposure.layout)
    return known(stated(defenses), found_in_features(seen))


def gradient_detections(
    sent: Sequence[Observation],
    *,
    again: Observation | None,
    reference: Mapping[str, Tensor],
    model: nn.Module,
    defenses: Sequence[Defense],
) -> list[Detection]:
    """Defenses that the attacker knows of: those stated, and those that show.

    Args:
        sent: What some clients sent.
        again: The first one's step once more; None: it was recorded elsewhere.
        reference: The gradient of images of the attacker's own.
        model: The model.
        defenses: What the user states.
    """
    repeated = None if again is None else again.gradients
    seen = GradientEvidence([one.gradients for one in sent], repeated, reference, model)
    return known(stated(defenses), found_in_gradient(seen))
