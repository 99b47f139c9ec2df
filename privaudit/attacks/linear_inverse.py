"""``linear_inverse``: least squares where the cut is (nearly) an affine map."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from privaudit.attacks._feature_base import FeatureAttack
from privaudit.attacks._feature_loss import require_features
from privaudit.attacks._forms import EXACT
from privaudit.attacks._linear_map import ImageMap
from privaudit.attacks._linear_newton import (
    Effort,
    gauss_newton,
    relative_error,
    undetermined,
)
from privaudit.attacks._linear_patches import tokens_of
from privaudit.attacks._linear_structure import Structure, structure_of
from privaudit.attacks._linear_tokens import invert
from privaudit.config import Budget
from privaudit.types import (
    AttackState,
    FeatureObservation,
    FeatureTarget,
    Reconstruction,
    Search,
)

if TYPE_CHECKING:
    from privaudit.attacks._linear_patches import PatchMap

_OPEN = 1e-2
"""Share of a random change that features may hide from a map that counts as full."""
_VALUES_AT_ONCE = 2**24
"""Features in one run of Gauss-Newton, which holds several of their size."""
_UNPROBED = "no time was left to see whether features determine the image"


@dataclass(frozen=True, eq=False)
class Found:
    """Images that one form gave, and how sure they are.

    Attributes:
        images: (batch, channels, height, width) in [0, 1].
        open_why: Per image what the features leave open; empty: nothing.
        iterations: Steps taken.
        in_time: False where the budget ended it.
    """

    images: Tensor
    open_why: list[str]
    iterations: int = 0
    in_time: bool = True


class LinearInverse(FeatureAttack):
    """Solves shallow cuts for the image; nothing is trained, hardly anything searched.

    Patch embeddings (also behind a LayerNorm) by the inverse of their matrix, other
    affine maps by conjugate gradients, rectifiers by Gauss-Newton. What features do
    not determine is filled in by smoothness, and then the result is not "exact".

    Source: beyond the papers; least squares by Hestenes 1952, smoothness by Rudin 1992.
    """

    name: ClassVar[str] = "linear_inverse"
    title: ClassVar[str] = "Linear inverse"
    source: ClassVar[str] = "Hestenes 1952; Rudin 1992"

    steps: int = Field(default=12, ge=1)
    """Tangents of Gauss-Newton, at most."""
    inner_steps: int = Field(default=60, ge=1)
    """Steps of conjugate gradients per tangent, at most."""

    @classmethod
    def tiny(cls) -> LinearInverse:
        """Few tangents."""
        return cls(steps=4, inner_steps=20)

    def run(
        self,
        target: FeatureTarget,
        observation: FeatureObservation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> list[Reconstruction]:
        """See :class:`~privaudit.attacks.FeatureAttack`.

        Raises:
            AttackError: The features are zero, or not finite.
        """
        require_features(observation)
        image_map = ImageMap(target, observation.image_shape)
        structure = structure_of(image_map, generator)
        refusal = _refusal(structure, observation)
        if refusal:
            skipped = Reconstruction(None, "skipped", refusal, forms=structure.outcomes)
            return [skipped] * len(observation)
        features = observation.features.to(image_map.device)
        if structure.patches is not None:
            found = _by_patches(structure, structure.patches, features)
        else:
            spend = _spender(budget, len(features))
            found = self._by_tangents(structure, features, spend, generator)
        return _answers(structure, features, found)

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        """Squared error of the features, as a share of the squared features."""
        image_map = ImageMap(target, observation.image_shape)
        made = image_map(images.to(image_map.device))
        return relative_error(made, observation.features.to(made)).tolist()

    def _by_tangents(
        self,
        structure: Structure,
        features: Tensor,
        spend: Callable[[int], Callable[[], bool]],
        generator: torch.Generator,
    ) -> Found:
        """Gauss-Newton, a few images at once."""
        seed = int(torch.randint(2**62, (), generator=generator))
        size = max(1, _VALUES_AT_ONCE // features[0].numel())
        parts = []
        for part in torch.split(features, size):
            effort = Effort(self.steps, self.inner_steps, spend(len(part)))
            start = structure.grey.expand(len(part), -1, -1, -1)
            ended = gauss_newton(structure.image_map, part, start, effort)
            images = ended.images.clamp(0, 1)
            same = torch.Generator().manual_seed(seed)
            why = [_UNPROBED] * len(part)
            if ended.in_time:
                why = _why_open(structure, part, images, same)
            parts.append(Found(images, why, ended.products, ended.in_time))
        return Found(
            torch.cat([p.images for p in parts]),
            [why for p in parts for why in p.open_why],
            sum(p.iterations for p in parts),
            all(p.in_time for p in parts),
        )


def _refusal(structure: Structure, observation: FeatureObservation) -> str:
    """Why there is nothing to solve; empty: there is."""
    values = observation.features[0].numel()
    pixels = math.prod(observation.image_shape)
    if structure.patches is not None or structure.is_affine or values >= pixels:
        return ""
    return (
        f"features are not affine in the image, and too few ({values} "
        f"for {pixels} pixel values) to be solved for it"
    )


def _spender(budget: Budget, images: int) -> Callable[[int], Callable[[], bool]]:
    """Makes, for some of the images, what says whether one more step may be made."""
    started, begun = time.monotonic(), [0]

    def part(count: int) -> Callable[[], bool]:
        begun[0] += count
        until, steps = begun[0] / images, [0]

        def one_more() -> bool:
            steps[0] += 1
            if budget.iterations is not None and steps[0] > budget.iterations:
                return False
            gone = time.monotonic() - started
            return budget.seconds is None or gone < budget.seconds * until

        return one_more

    return part


def _by_patches(structure: Structure, found: PatchMap, features: Tensor) -> Found:
    """Image by image: how noisy one is must not touch the next."""
    layout = structure.image_map.target.exposure.layout
    tokens = tokens_of(features, layout)
    inverted = [invert(found, one[None], structure.norm) for one in tokens]
    images = torch.cat([one.image for one in inverted]).clamp(0, 1).to(features)
    values = found.matrix.shape[1]
    return Found(images, [_filled_in(structure, values, i.lost) for i in inverted])


def _filled_in(structure: Structure, values: int, lost: int) -> str:
    """What smoothness had to add to one image; empty: nothing."""
    said = []
    if structure.norm is not None:
        said.append("a LayerNorm hides mean and scale of each patch")
    if lost:
        said.append(f"features show {values - lost} of the {values} values of a patch")
    return " and ".join(said) + (", filled in by smoothness" if said else "")


def _why_open(
    structure: Structure, features: Tensor, images: Tensor, generator: torch.Generator
) -> list[str]:
    """Whether other images give these features as well, as far as steps can tell."""
    image_map = structure.image_map
    if structure.is_affine:
        share = undetermined(image_map, images[:1], generator).expand(len(images))
    else:
        error = relative_error(image_map(images), features).sqrt()
        share = torch.zeros(len(images))
        if bool((error < EXACT).any()):
            share = undetermined(image_map, images, generator)
    return [
        f"features leave {value:.0%} of a random change of the image open"
        if value > _OPEN
        else ""
        for value in share.tolist()
    ]


def _answers(
    structure: Structure, features: Tensor, found: Found
) -> list[Reconstruction]:
    """One reconstruction an image, its features recomputed."""
    image_map = structure.image_map
    start = relative_error(image_map(structure.grey), features)
    final = relative_error(image_map(found.images), features)
    return [
        _answer(structure, found, row, (float(start[row]), float(final[row])))
        for row in range(len(features))
    ]


def _answer(
    structure: Structure, found: Found, row: int, losses: tuple[float, float]
) -> Reconstruction:
    start, final = losses
    residual, why = final**0.5, found.open_why[row]
    state, reason = _state(residual, why, found.in_time)
    search = Search(
        start, final, found.iterations, 1, found.images[0].numel(),
        path=f"{len(found.images)} image(s) at once",
    )  # fmt: skip
    return Reconstruction(
        found.images[row : row + 1],
        state,
        reason,
        form=structure.form,
        residual=residual,
        forms=structure.outcomes,
        notes=(*structure.notes, *structure.unreached),
        determined=structure.is_affine and not why,
        search=search,
    )


def _state(residual: float, why: str, in_time: bool) -> tuple[AttackState, str]:
    if residual < EXACT and not why:
        return "exact", ""
    matched = f"features are matched to {residual:.1e}"
    if not in_time:
        return "stopped", f"the budget was spent; {matched}; {why}"
    return "plateau", f"approximate: {matched}" + (f"; {why}" if why else "")
