"""``sparse_factorization``: whole batches, exactly, because of dropout."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from privaudit.attacks._compared import error_of
from privaudit.attacks._forms import EXACT
from privaudit.attacks._hidden import RowSpace, next_layer, row_space, rows_by_zeros
from privaudit.attacks._mixture import match_mixture
from privaudit.attacks._row_scale import images_of, scale_rows
from privaudit.attacks._scale_match import match_scales, scale_by_probabilities
from privaudit.attacks._scene import Scene, structure_of
from privaudit.attacks._sparse import SparseBasis, sparse_basis
from privaudit.attacks._unfold import Unfolded, on_model, unfold
from privaudit.attacks.base import Attack
from privaudit.tape import Op
from privaudit.types import AttackState, Batch, Observation, Reconstruction, Target

if TYPE_CHECKING:
    from privaudit.config import Budget

_RANK = 1e-6
"""Singular values below it, relative to the largest, are rounding of float32."""
_ZERO_ROW = 1e-5
_DROWNED = 0.1
"""Noise of this share of the last sample's singular value hides it."""


class SparseFactorization(Attack):
    """Takes a batch apart by the zeros that dropout or ReLU put into the gradient.

    The first linear layer's gradient is ``Δ Xᵀ`` of rank B. Dropout makes Δ sparse,
    which leaves one factorisation only, up to order and scale: more dropout makes it
    easier. Scale and sign follow from the bias gradient, or from the next layer. Where
    a step drew nothing and leaves no zeros, the B² mixing coefficients are matched
    instead of the pixels. What is found counts as exact only if it recomputes the whole
    gradient.

    Source: design of this project; Enthoven 2020 and Dimitrov 2024 (SPEAR) use the
    same zeros by other means.
    """

    name: ClassVar[str] = "sparse_factorization"
    title: ClassVar[str] = "Sparse factorisation"
    source: ClassVar[str] = "this project; cf. Enthoven 2020, Dimitrov 2024"
    control_batch: ClassVar[int] = 4

    starts: int = Field(default=64, ge=1)
    """Random starts of one round."""
    patience: int = Field(default=20, ge=1)
    """Rounds without a new sample after which it ends."""
    restarts: int = Field(default=3, ge=1)
    """Attempts from other starts while the gradient is not recomputed."""

    @classmethod
    def tiny(cls) -> SparseFactorization:
        """Few starts."""
        return cls(starts=16, patience=3)

    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Budget,
        generator: torch.Generator,
    ) -> Reconstruction:
        """See :class:`~privaudit.attacks.base.Attack`."""
        started = time.monotonic()
        structure = structure_of(target, observation, generator)
        scene = Scene(target, observation, structure, target.knowledge.labels)
        reason = _refusal(scene)
        if reason is not None:
            return Reconstruction(None, "skipped", reason)
        product = _product(scene)
        if product.reason:
            return Reconstruction(None, product.state, product.reason)
        deadline = None if budget.seconds is None else started + budget.seconds
        found: list[Reconstruction] = []
        for _ in range(self.restarts):
            found.append(self._attempt(scene, product, generator, deadline))
            if found[-1].state in ("exact", "stopped", "skipped"):
                break
        return min(found, key=_rank)

    def _attempt(
        self,
        scene: Scene,
        product: _Product,
        generator: torch.Generator,
        deadline: float | None,
    ) -> Reconstruction:
        basis = sparse_basis(
            product.left,
            None if product.partner is None else product.partner.basis,
            generator=generator,
            starts=self.starts,
            patience=self.patience,
            merged=product.rank < scene.observation.batch_size,
            deadline=deadline,
        )
        if len(basis.directions) < product.rank and _has_few_unknowns(scene, product):
            return _by_mixture(scene, product, generator, deadline)
        if len(basis.directions) < product.rank:
            late = deadline is not None and time.monotonic() > deadline
            return _too_few(scene, product, basis, late=late)
        return _assemble(scene, product, basis)


def _rank(found: Reconstruction) -> tuple[bool, bool, float]:
    """Exact first, then any image, then the smallest residual."""
    residual = float("inf") if found.residual is None else found.residual
    return (found.state != "exact", found.images is None, residual)


@dataclass(frozen=True, eq=False)
class _Product:
    """The first layer's gradient as a product of low rank.

    Attributes:
        rank: How many independent samples it holds.
        left: (out, rank) basis of its column space.
        right: (rank, in) with ``left @ right`` the gradient; the bias's last, if any.
        partner: What the next layer's inputs span; None: it does not show.
        after: That layer.
        state: How the attack ends where ``reason`` is given.
        reason: Why the product cannot be used.
    """

    rank: int
    left: Tensor
    right: Tensor
    partner: RowSpace | None = None
    after: Op | None = None
    state: AttackState = "skipped"
    reason: str = ""


def _refusal(scene: Scene) -> str | None:
    """The condition that does not hold, or None."""
    first, size = scene.structure.first, scene.observation.batch_size
    if first.kind != "linear":
        return f"the first layer ({first.path}) is {first.function}, not linear"
    if not scene.structure.affine:
        return f"the input of {first.path} is not an affine function of the image"
    if first.input.numel() // first.input.shape[-1] != size:
        return f"{first.path} sees more than one row an image"
    if first.weight is None or scene.structure.uses(first.weight) != 1:
        return f"{first.path} has no weight of its own"
    weight = scene.gradient(first.weight)
    if weight is None:
        return f"the weight of {first.path} is not shared"
    if not bool(weight.any()):
        return f"the gradient of {first.path} is zero"
    if size > min(weight.shape):
        return f"{size} samples are more than {first.path} has rank for"
    return scene.structure.dropped_input()


def _product(scene: Scene) -> _Product:
    """Split the gradient; find the layer that shares its zeros."""
    first, size = scene.structure.first, scene.observation.batch_size
    gradient = _gradient(scene, first)
    u, s, vh = torch.linalg.svd(gradient, full_matrices=False)
    rank = int((s > _RANK * s[0]).sum())
    left, right = u[:, :rank], s[:rank, None] * vh[:rank]
    if rank > size:
        reason = (
            f"the gradient of {first.path} is not of rank {size}: noise, rounding or "
            f"a penalty on the weights (singular value {size + 1} is "
            f"{float(s[size] / s[0]):.1e} of the first)"
        )
        # What stands out of the noise a better attack might still take apart.
        clear = float(s[size]) < _DROWNED * float(s[size - 1])
        return _Product(
            rank, left, right, state="failed" if clear else "skipped", reason=reason
        )
    after = next_layer(scene, first)
    # Equal images have masks of their own: the next layer still sees all samples.
    partner = row_space(scene, after, rank) if rank == size else None
    return _Product(rank, left, right, partner, after)


def _gradient(scene: Scene, first: Op) -> Tensor:
    """(out, in), with the bias's as one column more where it is shared."""
    weight = scene.observation.gradients[first.weight or ""].detach().double()
    bias = scene.gradient(first.bias)
    parts = [weight] if bias is None else [weight, bias[:, None]]
    return torch.cat(parts, dim=1).cpu()


def _has_few_unknowns(scene: Scene, product: _Product) -> bool:
    """True where the mixing matrix is all that is unknown."""
    known = scene.labels is not None or not scene.target.exposure.is_classification
    return scene.clean and known and product.rank == scene.observation.batch_size


def _by_mixture(
    scene: Scene,
    product: _Product,
    generator: torch.Generator,
    deadline: float | None,
) -> Reconstruction:
    """No zeros, but no masks either: match the gradient over the mixing matrix."""
    inputs = scene.structure.first.input.flatten(1).shape[1]
    images, residual = match_mixture(
        scene, product.right[:, :inputs], generator=generator, deadline=deadline
    )
    path, size = scene.structure.first.path, product.rank
    exact = residual < EXACT
    late = deadline is not None and time.monotonic() > deadline
    reason = (
        f"{size} samples as mixtures of the {size} rows that the gradient of {path} "
        f"shows: {size * size} unknowns"
    )
    if not exact:
        reason += f"; the recomputed gradient is off by {residual:.1e}"
    return Reconstruction(
        on_model(scene, images).clamp(0, 1),
        "exact" if exact else "stopped" if late else "plateau",
        reason,
        form="mixture of the row space",
        residual=residual,
        labels=None if scene.labels is None else scene.labels.sort().values,
    )


def _too_few(
    scene: Scene, product: _Product, basis: SparseBasis, *, late: bool
) -> Reconstruction:
    """Without dropout and zeros: no case for this attack. Else it failed."""
    path, found = scene.structure.first.path, len(basis.directions)
    if late:
        reason = f"the time was up with {found} of {product.rank} samples apart"
        return Reconstruction(None, "stopped", reason)
    if not found and scene.clean:
        reason = f"no zeros tell the samples apart in the gradient of {path}"
        return Reconstruction(None, "skipped", reason)
    reason = (
        f"{found} of {product.rank} samples could be told apart in the gradient of "
        f"{path}; their images need all"
    )
    return Reconstruction(None, "failed", reason)


def _assemble(scene: Scene, product: _Product, basis: SparseBasis) -> Reconstruction:
    """Images, masks and labels from the basis; exact if they give the gradient."""
    rows = torch.linalg.inv(basis.directions.T) @ product.right
    with_bias = scene.gradient(scene.structure.first.bias) is not None
    notes: list[str] = []
    if with_bias:
        images = images_of(scene, rows[:, :-1] / rows[:, -1:])
    elif product.partner is None or product.after is None:
        reason = "scale unknown: no linear layer follows unit by unit"
        return Reconstruction(None, "failed", reason)
    else:
        zero = (product.left @ basis.directions.T).T
        zero = zero.abs() <= _ZERO_ROW * product.left.norm(dim=1)
        hidden = rows_by_zeros(product.partner, zero)
        scaled = scale_rows(scene, rows, hidden, after=product.after)
        images = scaled.images
        loose = int((~scaled.settled).sum())
        if loose:
            notes.append(f"{loose} scales are fixed by the later layers only")
    images = _filled(images, basis, scene.observation.batch_size)
    found = unfold(scene, images)
    if notes:
        images = scale_by_probabilities(scene, images, found)
        found = unfold(scene, images)
    residual = _residual(scene, images, found)
    if residual is not None and not with_bias:
        moved = match_scales(scene, images, found)
        again = unfold(scene, moved)
        better = _residual(scene, moved, again)
        if better is not None and better < EXACT:
            images, found, residual = moved, again, better
    return _report(scene, basis, images, found, residual=residual, notes=notes)


def _filled(images: Tensor, basis: SparseBasis, size: int) -> Tensor:
    """Equal images come out once, with fewer zeros than others: repeat those."""
    missing = size - len(images)
    if missing <= 0:
        return images
    fewest = sorted(range(len(images)), key=lambda i: basis.zeros[i])
    repeated = [fewest[i % len(fewest)] for i in range(missing)]
    return torch.cat([images, images[repeated]])


def _residual(scene: Scene, images: Tensor, found: Unfolded) -> float | None:
    """Relative error of the whole recomputed gradient; None where it cannot be had."""
    if found.reason or (found.tape is None and not scene.clean):
        return None
    labels = scene.labels if found.labels is None else found.labels
    batch = Batch(on_model(scene, images), labels)
    exposure, model = scene.target.exposure, scene.target.model
    guess = exposure.gradient(model, batch, tape=found.tape)
    return error_of(scene.target, guess, scene.observation.gradients)


def _report(
    scene: Scene,
    basis: SparseBasis,
    images: Tensor,
    found: Unfolded,
    *,
    residual: float | None,
    notes: list[str],
) -> Reconstruction:
    exact = residual is not None and residual < EXACT
    units = scene.structure.first.output.shape[-1]
    low, high = min(basis.zeros) / units, max(basis.zeros) / units
    reason = (
        f"{len(basis.zeros)} samples told apart by the zeros in the gradient of "
        f"{scene.structure.first.path} ({low:.0%} to {high:.0%} of its units)"
    )
    if found.reason:
        reason += f"; not verified: {found.reason}"
    elif not exact and residual is not None:
        reason += f"; the recomputed gradient is off by {residual:.1e}"
    if len(basis.zeros) < len(images):
        notes.append(
            f"the gradient holds {len(basis.zeros)} independent samples of "
            f"{len(images)}: equal images appear once and are repeated"
        )
    return Reconstruction(
        on_model(scene, images).clamp(0, 1),
        "exact" if exact else "plateau",
        reason,
        form="sparse factorisation",
        residual=residual,
        labels=_class_ids(found.labels),
        notes=tuple(notes),
        masks=found.tape,
    )


def _class_ids(labels: Tensor | None) -> Tensor | None:
    """Those that were read off, sorted; probabilities were known before."""
    if labels is None or labels.is_floating_point():
        return None
    return labels.sort().values
