"""``closed_form``: no optimiser, milliseconds, exact up to float error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field

from privaudit.attacks._attention import attention_projection
from privaudit.attacks._first_linear import with_bias, without_bias
from privaudit.attacks._forms import Attempt, Form
from privaudit.attacks._labels import LabelGuess, infer_labels
from privaudit.attacks._position import position_embedding
from privaudit.attacks._scene import Scene, structure_of
from privaudit.attacks.base import Attack
from privaudit.types import FormOutcome, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.config import Budget

FormName = Literal[
    "first_linear", "first_linear_no_bias", "position_embedding", "attention"
]
_FORMS: dict[FormName, tuple[str, Form]] = {
    "first_linear": ("first linear layer with bias", with_bias),
    "position_embedding": (
        "patch embedding with learned position embedding",
        position_embedding,
    ),
    "attention": ("first attention projection", attention_projection),
    "first_linear_no_bias": ("first linear layer without bias", without_bias),
}


class ClosedForm(Attack):
    """Reads images straight out of the gradient where its structure allows.

    Each form checks its own conditions and says which one failed. Dropout does not
    disturb any of them: behind the first layer it masks both sides of the equations
    alike.

    Source: Phong 2017 (linear layer with bias), Lu 2021 (position embedding),
    Scheliga 2023 eq. 7 (masks), Zhao 2020, Yin 2021, Wainakh 2021 (labels).
    """

    name: ClassVar[str] = "closed_form"
    title: ClassVar[str] = "Closed form"
    source: ClassVar[str] = "Phong 2017; Lu 2021; Scheliga 2023"

    forms: tuple[FormName, ...] = Field(default=tuple(_FORMS), min_length=1)
    """Which forms to try, in this order; the first exact one wins."""

    @classmethod
    def tiny(cls) -> ClosedForm:
        """All forms: each takes milliseconds."""
        return cls()

    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> Reconstruction:
        """Try every form; see :class:`~privaudit.attacks.base.Attack`."""
        structure = structure_of(target, observation, generator)
        scene = Scene(target, observation, structure, target.knowledge.labels)
        guess = infer_labels(scene)
        if scene.labels is None and guess.labels is not None:
            device = next(iter(observation.gradients.values())).device
            scene = Scene(target, observation, structure, guess.labels.to(device))
        attempts: list[Attempt] = []
        for name in self.forms:
            if any(a.exact for a in attempts):
                break
            attempts.append(self._try(name, scene))
        return _report(scene, attempts, self.forms, guess)

    def _try(self, name: FormName, scene: Scene) -> Attempt:
        _, form = _FORMS[name]
        attempt, local = form(scene), scene.target.exposure.local
        if local is None or not attempt.applies:
            return attempt
        # The forms solve equations of a gradient; this is none, so nothing is exact.
        reason = f"{attempt.reason}; approximate: {local.words}"
        return replace(attempt, reason=reason, unique=False)


def _report(
    scene: Scene,
    attempts: list[Attempt],
    forms: tuple[FormName, ...],
    guess: LabelGuess,
) -> Reconstruction:
    best = min(attempts, key=_rank)
    outcomes = [FormOutcome(a.form, a.images is not None, a.reason) for a in attempts]
    outcomes += [
        FormOutcome(_FORMS[f][0], False, f"not tried: {best.form} is exact")
        for f in forms[len(attempts) :]
    ]
    notes = (guess.reason,) if guess.labels is None else ()
    if not any(a.applies for a in attempts):
        return Reconstruction(
            None, "skipped", "no form applies", forms=outcomes, labels=guess.labels,
            notes=notes,
        )  # fmt: skip
    images = best.images
    state: Literal["exact", "plateau", "failed"] = "exact" if best.exact else "plateau"
    if images is None:
        # Nothing in the gradient: the best guess is grey, and it is shown as such.
        # That is no result of an attack, so it must not count as one that ended.
        images, state = scene.structure.inputs.blank(), "failed"
    return Reconstruction(
        images.float().clamp(0, 1),
        state,
        best.reason,
        form=best.form if best.images is not None else "",
        residual=best.residual,
        forms=outcomes,
        labels=guess.labels,
        notes=notes,
        determined=best.images is not None and best.unique,
    )


def _rank(attempt: Attempt) -> tuple[bool, bool, bool, float]:
    """Exact first, then unique, then any image, then the smallest residual."""
    residual = float("inf") if attempt.residual is None else attempt.residual
    nothing = attempt.images is None
    return (not attempt.exact, not attempt.applies, nothing, residual)
