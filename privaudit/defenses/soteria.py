"""Entries of the representation that show most of the image are kept back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from privaudit.defenses._gradient_traces import empty_columns
from privaudit.defenses._traces import ramp
from privaudit.defenses.base import (
    GRADIENT,
    ClientStepContext,
    Defense,
    Detection,
    GradientEvidence,
)
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from privaudit.tape import Op


class Soteria(Defense):
    """Zeroes columns of the gradient of one linear layer, by default the last.

    The layer's input r is the representation. Pruned are the entries with the
    *smallest* ‖∂r_i/∂x‖ / |r_i|, which is the largest |r_i|·‖∂r_i/∂x‖⁻¹: to make up for
    them the image has to move furthest. Scores are means over the batch, so one set of
    columns is zeroed for all images. Entries that are zero in every image, such as
    dropped ones, have nothing to hide and do not count.

    Source: Sun 2021; differs in the mean over the batch, and in zero entries.
    """

    name: ClassVar[str] = "soteria"
    title: ClassVar[str] = "Soteria"
    source: ClassVar[str] = "Sun 2021"
    exposures: ClassVar[frozenset[str]] = frozenset({GRADIENT})
    does_not_protect: ClassVar[str] = (
        "All layers but the one: an attacker who leaves the zeroed columns out of its "
        "comparison reads the image off the other layers' gradients."
    )

    ratio: float = Field(default=0.8, gt=0, lt=1)
    """Share of the representation's entries, zeros left out, that is pruned."""
    layer: str | None = None
    """Path of the linear layer that is defended; None: the last."""

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`~privaudit.defenses.Defense`.

        Raises:
            ConfigError: There is no such linear layer on one vector per image.
        """
        weight, scores = self._scores(step)
        pruned = max(1, round(self.ratio * int(scores.isfinite().sum())))
        columns = scores.argsort(stable=True)[:pruned]
        sent = dict(gradients)
        kept = sent[weight].clone()
        kept[:, columns.to(kept.device)] = 0
        sent[weight] = kept
        return sent

    def _scores(self, step: ClientStepContext) -> tuple[str, Tensor]:
        """The layer's weight, and ‖∂r_i/∂x‖ / |r_i| of each entry i of its input."""
        from privaudit.tape import Tracer
        from privaudit.types import Batch

        images = step.batch.images.detach().clone().requires_grad_()
        tracer = Tracer(step.model)
        step.exposure.trace(
            step.model, Batch(images, step.batch.labels), tracer, tape=step.tape
        )
        op = self._defended(tracer.ops, len(images))
        moves = _moves(op.input.reshape(len(images), -1), images)
        size = op.input.detach().reshape(len(images), -1).abs()
        score = (moves / size).where(size > 0, torch.inf)
        # Images in which the entry is zero say nothing of it.
        counted = score.isfinite()
        mean = score.where(counted, 0).sum(0) / counted.sum(0).clamp_min(1)
        return op.weight or "", mean.where(counted.any(0), torch.inf)

    def _defended(self, ops: list[Op], images: int) -> Op:
        wanted = [op for op in ops if self.layer in (None, op.path)]
        op = wanted[-1] if wanted else None
        rows = 0 if op is None else op.input.numel() // max(1, op.input.shape[-1])
        if op is not None and op.kind == "linear" and op.weight and rows == images:
            return op
        where = "the last layer" if self.layer is None else f"a layer {self.layer!r}"
        got = "no such layer"
        if op is not None:
            got = f"{op.path}: {op.function} on {tuple(op.input.shape)}"
        raise ConfigError(
            "defense soteria", expected=f"{where} that is linear, one row an image",
            got=got, hint="Name one by layer=, such as the classifier's path.",
        )  # fmt: skip

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        shares = [empty_columns(g, seen.model) for g in seen.sent]
        share = sum(shares) / len(shares)
        usual = empty_columns(seen.reference, seen.model)
        return Detection(
            defense=cls.name, confidence=ramp(share - usual, 0.2),
            evidence=f"{share:.0%} of the columns of the last linear layer are zero, "
            f"{usual:.0%} in the attacker's own gradient",
            estimate={"ratio": share},
        )  # fmt: skip


def _moves(representation: Tensor, images: Tensor) -> Tensor:
    """‖∂r_i/∂x‖ of each entry i, (images, entries): one backward pass an entry."""
    found = []
    for entry in range(representation.shape[1]):
        (slope,) = torch.autograd.grad(
            representation[:, entry].sum(), images, retain_graph=True
        )
        found.append(slope.flatten(1).norm(dim=1))
    return torch.stack(found, 1)
