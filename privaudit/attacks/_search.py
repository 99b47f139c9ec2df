"""What all gradient-matching attacks do around the loop: start, restart, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privaudit.attacks._compared import apart, error_of, observed_for
from privaudit.attacks._forms import EXACT
from privaudit.attacks._matching import Matching, Start, UnknownMasks, Weighted
from privaudit.attacks._minimise import Descent, Schedule
from privaudit.attacks._refine import Refinement
from privaudit.attacks._scene import Scene, structure_of
from privaudit.attacks._steps import minimise
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.distances import Cosine, Distance
from privaudit.errors import AttackError
from privaudit.exposure.predict import predict
from privaudit.priors import TotalVariation
from privaudit.tape import Tape
from privaudit.types import (
    AttackState,
    Batch,
    Observation,
    Reconstruction,
    Search,
    Target,
)

_NONE = Refinement()
SMOOTH_PRIOR = 1e-2
FAINT_PRIOR = 1e-5

Masks = Sequence[Tensor]
TapeOf = Callable[[Masks], Tape | None]
Penalty = Callable[[Masks], Tensor]


@dataclass(frozen=True, eq=False)
class Plan:
    """What an attack optimises beside the image.

    Attributes:
        masks: Draws the starting masks of one run; empty where none is unknown.
        tape_of: Puts masks into a tape.
        penalty: λ·Ω of the masks.
        held: Per mask which entries stay as they start; None: none.
        classes: How many the model has; needed where labels are optimised.
        seeds: How many starts are searched together.
        restarts: How many are searched one after the other, unless the budget says.
    """

    masks: Callable[[], Masks]
    tape_of: TapeOf
    penalty: Penalty | None = None
    held: Sequence[Tensor | None] = ()
    classes: int = 0
    seeds: int = 1
    restarts: int = 1


def search(
    matching: Matching,
    plan: Plan,
    *,
    schedule: Schedule,
    budget: Budget,
    generator: torch.Generator,
    refinement: Refinement = _NONE,
) -> Reconstruction:
    """Run the loop, restart as the budget allows, return the best run, refined."""
    started = time.monotonic()
    budget, refinement = refinement.split(matching, budget)
    wanted = budget.restarts or plan.restarts
    runs: list[Descent] = []
    for _ in range(wanted):
        left = _left(budget, started)
        if left is not None and left <= 0:
            break
        runs.append(
            minimise(
                matching,
                start_of(matching, plan, generator),
                unknown_masks=UnknownMasks(
                    plan.masks(), plan.tape_of, plan.penalty, plan.held
                ),
                schedule=schedule,
                budget=budget.model_copy(update={"seconds": left}),
            )
        )
        if runs[-1].end in ("goal", "interrupted"):
            break
    if runs and runs[-1].end != "interrupted":
        best = runs.index(_best_of(runs))
        runs[best] = refinement(matching, plan.tape_of, plan.held, runs[best])
    return report(matching, plan, runs, wanted)


def _best_of(runs: Sequence[Descent]) -> Descent:
    """The one of the smallest loss; a loss that is no number is the largest."""
    return min(runs, key=lambda r: (r.total_best != r.total_best, r.total_best))


def _left(budget: Budget, started: float) -> float | None:
    if budget.seconds is None:
        return None
    return budget.seconds - (time.monotonic() - started)


def start_of(matching: Matching, plan: Plan, generator: torch.Generator) -> Start:
    """Standard normal noise, as the model takes images. Source: Geiping 2020."""
    size = matching.observation.batch_size
    device = next(iter(matching.observation.gradients.values())).device
    shape = (plan.seeds * size, *matching.observation.image_shape)
    inputs = torch.randn(shape, generator=generator).to(device)
    if matching.labels is not None:
        return Start(inputs)
    # All classes alike: a wrong class at the start is hard to leave again.
    return Start(inputs, torch.zeros(size, plan.classes, device=device))


def report(
    matching: Matching,
    plan: Plan,
    runs: Sequence[Descent],
    wanted: int,
    *,
    path: str = "one client",
) -> Reconstruction:
    """The best of some runs, as what an attack answers."""
    best = _best_of(runs) if runs else None
    if best is None or not best.total_best < float("inf"):
        return Reconstruction(None, "failed", "numerical: no finite loss")
    normal = matching.scale
    other = best.other
    images = normal.invert(_best_seed(matching, best.best[0])).clamp(0, 1)
    pictures = [(i, normal.invert(v)[0].clamp(0, 1)) for i, v in best.pictures]
    state, reason = _state(runs, wanted)
    labels = (
        matching.labels if matching.labels is not None else best.best[-1].softmax(-1)
    )
    masks = best.best[1:] if matching.labels is not None else best.best[1:-1]
    tape = plan.tape_of(masks)
    residual = _residual(matching, Batch(images, labels), tape)
    if residual < EXACT:
        state, reason = "exact", "the recomputed gradient matches"
    return Reconstruction(
        images,
        state,
        reason,
        form="gradient matching",
        residual=residual,
        labels=labels.argmax(-1) if matching.labels is None else None,
        masks=tape if masks else None,
        notes=best.notes,
        other=None if other is None else normal.invert(other).clamp(0, 1),
        search=Search(
            best.loss_start,
            best.loss_best,
            sum(r.iterations for r in runs),
            len(runs),
            sum(v.numel() for v in best.best),
            curve=best.curve,
            pictures=pictures,
            path=path if best.way == "plain" else f"{path}, {best.way}",
        ),
    )


def _best_seed(matching: Matching, inputs: Tensor) -> Tensor:
    """Of starts that were searched together the one that matches best."""
    parts = torch.split(inputs, matching.observation.batch_size)
    if len(parts) == 1:
        return inputs
    guesses = [matching.guess(p, None) for p in parts]
    observed = matching.observed(guesses[0])
    losses = [float(matching.apart(g, observed).detach()) for g in guesses]
    return parts[losses.index(min(losses))]


def loss_at(
    target: Target,
    observation: Observation,
    batch: Batch,
    tape: Tape,
    distance: Distance | None = None,
) -> float:
    """Matching loss at a given input under given masks; None: the cosine's."""
    guess = predict(target.exposure, target.model, batch, tape)
    observed = observed_for(target, guess, observation.gradients)
    distance = Cosine() if distance is None else distance
    return float(apart(distance, target, guess, observed).detach())


def _residual(matching: Matching, batch: Batch, tape: Tape | None) -> float:
    """Relative error of the recomputed gradient, under the masks that were found."""
    exposure, model = matching.target.exposure, matching.target.model
    still = None if tape is None else tape.detached()
    guess = exposure.gradient(model, batch, tape=still)
    return error_of(matching.target, guess, matching.observation.gradients)


def _state(runs: Sequence[Descent], wanted: int) -> tuple[AttackState, str]:
    ends = {r.end for r in runs}
    if "interrupted" in ends:
        return "stopped", INTERRUPTED
    if "seconds" in ends or (len(runs) < wanted and "goal" not in ends):
        return "stopped", f"the time was up after {runs[-1].iterations} iterations"
    if ends == {"numerical"}:
        return "failed", "numerical: the loss became NaN"
    return "plateau", f"ended by {runs[-1].end} after {runs[-1].iterations} iterations"


def scene_of(
    target: Target, observation: Observation, generator: torch.Generator
) -> Scene:
    """The observation with the model's structure and the labels, known or read off.

    Raises:
        AttackError: Labels are needed, not known, and cannot be read off.
    """
    scene = bare_scene(target, observation, generator)
    settled = scene.labels is not None or not target.exposure.is_classification
    return scene if settled or target.knowledge.joint else with_read_labels(scene)


def bare_scene(
    target: Target, observation: Observation, generator: torch.Generator
) -> Scene:
    """The observation with the model's structure, and the labels only if known.

    Raises:
        AttackError: The observation is zero, or not finite.
    """
    require_information(observation)
    structure = structure_of(target, observation, generator)
    return Scene(target, observation, structure, target.knowledge.labels)


def with_read_labels(scene: Scene) -> Scene:
    """The scene with labels read off the gradient, whatever else is known.

    Raises:
        AttackError: They cannot be.
    """
    from privaudit.attacks._labels import infer_labels

    guess = infer_labels(scene)
    if guess.labels is None:
        raise AttackError(
            "knowledge.labels",
            expected="labels that can be read off the gradient",
            got=guess.reason,
            hint='Audit with Knowledge(labels="known"): the worst case.',
        )
    device = next(iter(scene.observation.gradients.values())).device
    return replace(scene, labels=guess.labels.to(device))


def require_information(observation: Observation) -> None:
    """Refuse a gradient that no search can match.

    Raises:
        AttackError: It is zero everywhere, or holds NaN or infinite values.
    """
    for name, value in observation.gradients.items():
        bad = int((~value.isfinite()).sum())
        if bad:
            raise AttackError(
                f"observation[{name!r}]",
                expected="a finite gradient",
                got=f"{bad} of {value.numel()} values NaN or infinite",
                hint="A gradient that is not finite cannot be matched: look at the "
                "layer, the loss scale, or how the update was recorded.",
            )
    if not any(bool(g.any()) for g in observation.gradients.values()):
        raise AttackError(
            "observation",
            expected="a gradient that is not zero",
            got="zero everywhere",
            hint="There is nothing to match; see the findings.",
        )


def classes_of(scene: Scene) -> int:
    """How many classes the model tells apart; 0 where that is hidden."""
    logits = scene.structure.logits
    return 0 if logits is None else int(logits.shape[-1])


def matching_of(
    scene: Scene, prior_weight: float | None, distance: Distance | None = None
) -> Matching:
    """The objective of Geiping 2020: cosine over everything, and total variation.

    Args:
        scene: The observation; labels settled.
        prior_weight: λ of the total variation; None: as the model suggests.
        distance: In the cosine's place.
    """
    labels = scene.labels
    if not (scene.target.knowledge.joint and classes_of(scene)):
        labels = require_labels(labels)
    if prior_weight is None:
        prior_weight = default_prior_weight(scene)
    return Matching(
        scene.target,
        scene.observation,
        labels,
        Cosine() if distance is None else distance,
        [Weighted(prior_weight, TotalVariation())],
    )


def default_prior_weight(scene: Scene) -> float:
    """1e-2 for convolutional networks, 1e-5 for patches and linear layers.

    Source: Scheliga 2023 (LeNet and ResNet against MLP and ViT).
    """
    first = scene.structure.first
    if first.kind != "conv2d":
        return FAINT_PRIOR
    kernel, stride = first.settings["kernel_size"], first.settings.get("stride", 1)
    step = stride if isinstance(stride, int) else min(stride)
    return SMOOTH_PRIOR if max(kernel) > step else FAINT_PRIOR


def require_labels(labels: Tensor | None) -> Tensor:
    """The labels, without which there is no loss."""
    if labels is None:
        raise AttackError(
            "knowledge.labels", expected="labels for the loss", got="none",
            hint="Pass (images, labels).",
        )  # fmt: skip
    return labels
