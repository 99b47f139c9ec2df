"""Attacks without the truth: an image counts where it gives the whole gradient."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from privaudit._nearer import SAME_IMAGE_MSE
from privaudit._precision import divided, loss_scale
from privaudit._runner import RANGE_TOLERANCE, Client, Clock, Run
from privaudit._scoring import Pictures
from privaudit.attacks import Attack
from privaudit.attacks._forms import EXACT
from privaudit.attacks._labels import infer_labels
from privaudit.attacks._masks import read_masks
from privaudit.attacks._scene import Scene, Structure, structure_of
from privaudit.exposure import relative_error
from privaudit.result import (
    AttackRecord,
    CurvePoint,
    FormNote,
    Preflight,
    SampleOutcome,
)
from privaudit.tape import Tape
from privaudit.types import (
    Batch,
    Observation,
    Reconstruction,
    Target,
)
from privaudit.verdict import GRADIENT_MATCH, AttackEvidence, Score, above_noise

_NO_TRUTH = "the images of the step were not given"


@dataclass(frozen=True, eq=False)
class Trial:
    """One attack without the truth, and what its recomputed gradient says."""

    run: Run[Attack]
    match: Score


def attempt(
    attack: Attack, target: Target, client: Client, *, clock: Clock, seed: int
) -> Trial:
    started = time.monotonic()
    outcome, match = _outcome(attack, target, client, clock=clock, seed=seed)
    return Trial(Run(attack, [outcome], time.monotonic() - started), match)


def _outcome(
    attack: Attack, target: Target, client: Client, *, clock: Clock, seed: int
) -> tuple[Reconstruction, Score]:
    if attack.diagnostic:
        return _nothing("skipped", "a diagnostic needs the truth, which was not given")
    share = clock.share(1)
    if share is None:
        return _nothing("stopped", "no time was left")
    generator = torch.Generator().manual_seed(seed)
    observation = client.step.observation
    try:
        found = attack.run(target, observation, budget=share, generator=generator)
        noise = client.noise_floor
        return _held_against(
            found, target, observation, generator=generator, noise=noise
        )
    except Exception as error:  # noqa: BLE001  a plug-in may break in any way
        first = next(iter(str(error).splitlines()), "")
        return _nothing("failed", f"{type(error).__name__}: {first}")


def _nothing(state: Any, reason: str) -> tuple[Reconstruction, Score]:
    return Reconstruction(None, state, reason), Score(value=None, note=reason)


def _held_against(
    found: Reconstruction,
    target: Target,
    observation: Observation,
    *,
    generator: torch.Generator,
    noise: float,
) -> tuple[Reconstruction, Score]:
    """Exact means here: the whole gradient comes out of the image again.

    Where the client rounds more than float32 does, a closed form that leaves no choice
    counts up to the noise of that. A search does not: it may use the noise.
    """
    if found.images is None or not _is_picture(found.images, observation):
        if found.images is None and found.state in ("skipped", "failed", "stopped"):
            return found, Score(value=None, note=found.reason)
        return _nothing("failed", "gives no image of the size asked for in [0, 1]")
    tolerance = above_noise(EXACT, noise)
    error, reason = _whole_error(
        found, target, observation, generator=generator, noise=noise
    )
    reach = tolerance if found.determined else EXACT
    if error is not None and error < reach:
        structure = structure_of(target, observation, generator)
        doubt = _rivals(found, structure, observation, generator)
        if doubt is None:
            note = "of the whole recomputed gradient"
            if error < EXACT:
                exact = replace(found, state="exact", residual=error)
                return exact, Score(value=error, note=note)
            text = f"the whole gradient is matched up to its rounding ({error:.1e})"
            near = replace(
                found, residual=error, reason=f"{found.reason}; {text}".lstrip("; ")
            )
            return near, Score(value=error, note=f"{note}, up to its rounding")
        reason = f"the whole gradient is matched ({error:.1e}), but {doubt}"
    state = "plateau" if found.state in ("exact", "converged") else found.state
    weaker = replace(
        found,
        state=state,
        reason="; ".join(r for r in (found.reason, reason) if r),
        residual=found.residual if error is None else error,
    )
    unmatched = error is None or error < tolerance
    return weaker, Score(value=None if unmatched else error, note=reason)


def _rivals(
    found: Reconstruction,
    structure: Structure,
    observation: Observation,
    generator: torch.Generator,
) -> str | None:
    """Why other images may give the same gradient; None where nothing speaks for it.

    With the truth such a match is found out by the image. Here it must not pass: a
    gradient that does not determine the image is no evidence of anything.
    """
    if structure.affine and _sees_less(structure, observation, generator):
        return "the first layer does not see the whole image: others look alike to it"
    search = found.search
    if search is None:
        known = found.state == "exact" or found.determined
        return None if known else "other images match as well"
    if structure.first.weight not in observation.gradients:
        return "the first layer is not shared: many images have the same features"
    equations = sum(int(g.count_nonzero()) for g in observation.gradients.values())
    if equations < search.unknowns:
        return f"{equations} values cannot determine {search.unknowns} unknowns"
    return None


def _sees_less(
    structure: Structure, observation: Observation, generator: torch.Generator
) -> bool:
    """True when an image cannot be told from what the first layer is given of it."""
    image = torch.rand(1, *observation.image_shape, generator=generator)
    image = image.to(structure.inputs.blank())
    with torch.no_grad():
        given = structure.inputs(image)
    again = structure.inputs.invert(given)
    return float((again - image).square().mean()) > SAME_IMAGE_MSE


def _is_picture(images: Tensor, observation: Observation) -> bool:
    shape = (observation.batch_size, *observation.image_shape)
    if tuple(images.shape) != shape or not bool(images.isfinite().all()):
        return False
    low, high = float(images.min()), float(images.max())
    return low >= -RANGE_TOLERANCE and high <= 1 + RANGE_TOLERANCE


def _whole_error(
    found: Reconstruction,
    target: Target,
    observation: Observation,
    *,
    generator: torch.Generator,
    noise: float,
) -> tuple[float | None, str]:
    """Relative error of the whole gradient of the image found, or why there is none.

    Masks are the ones that a client can have drawn, 0 or 1: fuzzy ones fit too much.
    """
    if not any(bool(g.any()) for g in observation.gradients.values()):
        return None, "no information: the whole gradient is zero, whatever the image"
    structure = structure_of(target, observation, generator)
    scene = Scene(target, observation, structure, target.knowledge.labels)
    labels = _labels(scene, found)
    if labels is None and target.exposure.training_step is None:
        return None, "the labels are not known, so the gradient cannot be recomputed"
    tape: Tape | None = None
    if structure.tape.active:
        tape = found.masks or read_masks(scene).tape
        if tape is None:
            return None, (
                "the client's masks do not show in the gradient: only the part in "
                "front of them was recomputed"
            )
        tape = _drawable(tape)
    images = found.images
    if images is None:
        return None, "no image"
    device = next(iter(observation.gradients.values())).device
    batch = Batch(images.to(device), None if labels is None else labels.to(device))
    guess = target.exposure.gradient(target.model, batch, tape=tape)
    observed, scaled = observation.gradients, ""
    scale = loss_scale(guess, observed, noise)
    if scale is not None:
        observed, scaled = divided(observed, scale), f", divided by its scale {scale:g}"
    error = relative_error(guess, observed)
    off = f"is off by {error:.1e} (relative)"
    return error, f"the whole recomputed gradient {off}{scaled}"


def _labels(scene: Scene, found: Reconstruction) -> Tensor | None:
    """Known, or as the attack read them off, or read off here."""
    if scene.labels is not None:
        return scene.labels
    return infer_labels(scene).labels if found.labels is None else found.labels


def _drawable(tape: Tape) -> Tape:
    return tape.with_values(
        d.value.detach().round().clamp(0, 1)
        if d.is_mask and d.value is not None
        else d.value
        for d in tape
    )


def blind_record(
    trial: Trial, client: Client, pictures: Pictures, *, seed: int
) -> AttackRecord:
    ran, outcome = trial.run, trial.run.outcomes[0]
    count = client.step.observation.batch_size
    label = ran.label
    names: list[str | None] = [None] * count
    if outcome.images is not None:
        images = outcome.images.detach().float().cpu().clamp(0, 1)
        pictures.tensors[label] = images
        names = [
            pictures.add(f"images/{label}-{i:04d}.png", image)
            for i, image in enumerate(images)
        ]
    skipped = ran.state == "skipped"
    return AttackRecord(
        evidence=AttackEvidence(
            label=label,
            state=ran.state,
            required=ran.attack.required,
            diagnostic=ran.attack.diagnostic,
            skip="not applicable" if skipped else None,
            reason=ran.reason,
            scores={} if skipped else {GRADIENT_MATCH: [trial.match] * count},
        ),
        title=ran.attack.title,
        summary=(type(ran.attack).__doc__ or "").strip().split("\n\n")[0],
        settings=ran.attack.settings(),
        settings_given=ran.attack.settings_given(),
        seconds=ran.seconds,
        device=str(client.batch.images.device),
        seed=seed,
        defense=ran.stance.defense,
        countermeasures=list(ran.stance.countermeasures),
        countermeasure_notes=list(ran.stance.notes),
        outcomes=[_sample_outcome(outcome, count) for _ in range(count)],
        images=names,
        **_search_facts(outcome),
    )


def _sample_outcome(outcome: Reconstruction, count: int) -> SampleOutcome:
    labels = outcome.labels
    return SampleOutcome(
        state=outcome.state,
        form=outcome.form,
        residual=outcome.residual,
        note="; ".join([outcome.reason, *outcome.notes]),
        forms=[
            FormNote(form=f.form, applied=f.applied, reason=f.reason)
            for f in outcome.forms
        ],
        label=int(labels[0]) if labels is not None and count == 1 else None,
    )


def _search_facts(outcome: Reconstruction) -> dict[str, Any]:
    search = outcome.search
    if search is None:
        return {}
    curve = [CurvePoint(iteration=i, loss=v) for i, v in search.curve if _finite(v)]
    return {
        "iterations": search.iterations,
        "restarts": search.restarts,
        "optimised": search.unknowns,
        "loss_start": search.loss_start if _finite(search.loss_start) else None,
        "loss_final": search.loss_final if _finite(search.loss_final) else None,
        "curve": curve,
    }


def _finite(value: float) -> bool:
    return math.isfinite(value)


def blind_preflight(client: Client) -> Preflight:
    return Preflight(
        replay_error=None,
        loss_at_truth=None,
        noise_floor=client.noise_floor or None,
        double_backward=f"not probed: {_NO_TRUTH}",
        notes=[f"{_NO_TRUTH}: the audit's own checks at the truth were not made"],
    )
