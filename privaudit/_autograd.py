"""torch.autograd.grad with the types that it really returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def partials(
    output: Tensor,
    inputs: Sequence[Tensor],
    weights: Tensor | None = None,
    *,
    create_graph: bool = False,
    keep: bool = True,
) -> list[Tensor | None]:
    """Gradient of ``output`` (weighted, if not scalar) for each of ``inputs``.

    Args:
        output: Of any shape.
        inputs: What to differentiate by.
        weights: Of the shape of ``output``; None for a scalar.
        create_graph: True keeps the graph for a second derivative.
        keep: True keeps the graph of the first.

    Returns:
        One tensor per input; None where the output does not depend on it.
    """
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        output,
        list(inputs),
        weights,
        retain_graph=keep or create_graph,
        create_graph=create_graph,
        allow_unused=True,
    )
    # Embeddings may give sparse ones, which most of torch does not compute with.
    return [g.to_dense() if g is not None and g.is_sparse else g for g in found]
