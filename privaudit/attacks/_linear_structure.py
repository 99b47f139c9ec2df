"""What kind of map the cut is: found by trying it, not by the names of its layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privaudit.attacks._linear_map import ImageMap, is_affine
from privaudit.attacks._linear_norm import LastNorm, find_norm
from privaudit.attacks._linear_patches import (
    PatchMap,
    find_patches,
    has_places,
    tokens_of,
)
from privaudit.types import FormOutcome


@dataclass(frozen=True, eq=False)
class Structure:
    """The map from images to features.

    Attributes:
        image_map: It.
        is_affine: Features of a mean of images are the mean of their features.
        norm: The LayerNorm that the features come out of, behind an affine map.
        patches: The matrix from patches to tokens, where tokens see one patch each.
    """

    image_map: ImageMap
    is_affine: bool
    norm: LastNorm | None
    patches: PatchMap | None

    @property
    def grey(self) -> Tensor:
        """(1, channels, height, width): where searches start."""
        return torch.full((1, *self.image_map.shape), 0.5, device=self.image_map.device)

    @property
    def form(self) -> str:
        """How such a map is solved."""
        if self.patches is None:
            return "conjugate gradients" if self.is_affine else "Gauss-Newton"
        behind = "" if self.norm is None else " behind a LayerNorm"
        return f"matrix of a patch embedding{behind}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader may want to know of the map."""
        if self.patches is None:
            return ()
        condition = self.patches.condition
        rows, columns = self.patches.matrix.shape
        return (
            f"the patch embedding is a {rows} x {columns} matrix of condition number "
            f"{condition:.2g}",
        )

    @property
    def unreached(self) -> tuple[str, ...]:
        """What countermeasures do that equations have no room for."""
        if not self.image_map.target.comparisons:
            return ()
        return (
            "features were solved for as they came: countermeasures that act where "
            "features are compared do not reach this attack",
        )

    @property
    def outcomes(self) -> tuple[FormOutcome, ...]:
        """Which forms fit this map, and why the others do not."""
        bent = "" if self.is_affine else "features are not affine in the image"
        if self.patches is not None:
            solved = "not tried: the patch embedding is solved"
            return (
                FormOutcome("patch embedding", True, ""),
                FormOutcome("affine map", False, bent or solved),
            )
        apart = "features of one place are not those of one patch"
        return (
            FormOutcome("patch embedding", False, bent or apart),
            FormOutcome("affine map", self.is_affine, bent),
        )


def structure_of(image_map: ImageMap, generator: torch.Generator) -> Structure:
    """Try the map on images of the attacker's own."""
    affine = is_affine(image_map, generator)
    layout = image_map.target.exposure.layout
    black = image_map(torch.zeros(1, *image_map.shape, device=image_map.device))
    if not has_places(black, layout):
        return Structure(image_map, affine, None, None)
    if affine:
        patches = find_patches(
            lambda images: tokens_of(image_map(images), layout), image_map, generator
        )
        return Structure(image_map, True, None, patches)
    norm = find_norm(image_map, generator)
    if norm is None:
        return Structure(image_map, False, None, None)
    patches = find_patches(norm.before(image_map), image_map, generator)
    return Structure(image_map, False, norm if patches else None, patches)
