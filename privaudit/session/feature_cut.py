"""Opens a cut for an audit: where it is, what it sends, what it costs, what is odd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation, to_range
from privaudit._sample import read_sample
from privaudit._shape import expected_channels, stated_input_shape
from privaudit.config import AuditConfig, Split
from privaudit.exposure import (
    CutCheck,
    FeatureExposure,
    GradientExposure,
    check_cut,
    output,
    resolve,
)
from privaudit.exposure.cut_resolve import AnyCut
from privaudit.exposure.output import input_keyword
from privaudit.inventory import Finding, Inventory, findings
from privaudit.inventory.layout import about_layout, find_layout
from privaudit.inventory.records import SplitCandidate, StochasticCall
from privaudit.inventory.split_candidates import split_candidates
from privaudit.result import SplitRecord
from privaudit.types import Batch, FeatureLayout

_CHECKED = 2
"""Images on which a cut is examined."""


@dataclass(frozen=True, eq=False)
class OpenedCut:
    """A cut with everything that was found out about it.

    Attributes:
        model: The whole model.
        exposure: Makes features.
        record: For the result.
        check: Whether everything goes through the cut.
        stochastic: What draws at random in one pass, in the mode of the audit.
        images: A few, on the model's device.
        sent: Their features.
    """

    model: nn.Module
    exposure: FeatureExposure
    record: SplitRecord
    check: CutCheck
    stochastic: Sequence[StochasticCall]
    images: Tensor
    sent: Tensor

    def inventory(self, notes: Sequence[Finding]) -> Inventory:
        """What is in the model, and what there is to know about this cut."""
        return Inventory(
            model=type(self.model).__name__,
            input_shape=list(self.images.shape[1:]),
            parameters=sum(p.numel() for p in self.model.parameters()),
            trainable=sum(
                p.numel() for p in self.model.parameters() if p.requires_grad
            ),
            stochastic=list(self.stochastic),
            census=True,
            findings=[
                *notes,
                *self.check.findings,
                *about_layout(self.exposure.layout, self.record.name),
                *findings.about_randomness(self.stochastic),
                *self._about_constant(),
            ],
        )

    def _about_constant(self) -> list[Finding]:
        """Features that are the same for every image hold no information."""
        with torch.no_grad():
            sent = self.exposure.predict(self.model, self.images[:1])
            other = self.exposure.predict(self.model, 1 - self.images[:1])
        if not torch.equal(sent, other):
            return []
        return [
            Finding(
                code="constant-features",
                severity="warning",
                where=self.record.name,
                title="The features do not depend on the image",
                text="An image and its negative give the same features, bit for bit: "
                "nothing can be rebuilt from them, and nothing computed either.",
                remedy="Check that the model works: dead or untrained layers do this.",
            )
        ]

    def total_flops(self) -> int | None:
        """Floating-point operations of the whole model, one image."""
        return counted_flops(lambda: self.exposure.whole(self.model, self.images[:1]))


def opened_cut(
    model: nn.Module,
    split: Split,
    images: Tensor,
    normalisation: Normalisation,
    keyword: str | None,
) -> OpenedCut:
    """Find the cut, its layout and its cost, and check that nothing passes beside it.

    Args:
        model: The whole model, in the mode in which it is deployed.
        split: As the user wrote it.
        images: (batch, channels, height, width) in [0, 1].
        normalisation: From [0, 1] pixels to what the model takes.
        keyword: Name of the input for models that take it by keyword only.

    Raises:
        ConfigError: No such cut; a sample that the model does not take; a layout that
            nothing settles.
    """
    device = next(model.parameters(), torch.empty(0)).device
    few = images[:_CHECKED].to(device)

    def run(inputs: Tensor) -> Any:
        return output.call(model, inputs, keyword)

    cut = resolve(model, split, lambda: run(_given(normalisation, few)))
    check = check_cut(model, cut, run, _given(normalisation, few))

    def capture(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            return cut.capture(model, lambda: run(_given(normalisation, pixels)))

    layout = find_layout(model, split, few, capture, path=_path(cut))
    exposure = FeatureExposure(normalisation, cut, layout, keyword)
    sent = capture(few[:1])
    record = _record(split, cut, layout, sent).model_copy(
        update={
            "complete": check.complete,
            "client_flops": counted_flops(lambda: capture(few[:1])),
        }
    )
    _, tape = GradientExposure(normalisation, mode="as_is", keyword=keyword).census(
        model, Batch(few, None), train=model.training
    )
    calls = [d.record(in_eval=d.active and not model.training) for d in tape.draws]
    return OpenedCut(model, exposure, record, check, calls, few, sent)


def candidates(
    model: nn.Module,
    given: Any,
    config: AuditConfig,
    normalisation: Normalisation,
) -> list[SplitCandidate]:
    """Where a model can be cut, on the first image of a sample.

    Args:
        model: The whole model.
        given: As for ``Auditor.audit``; None: a shipped photograph.
        config: Of the audit.
        normalisation: As the user gave it.
    """
    if config.client.mode == "train":
        model.eval()
    if given is None:
        shipped = shipped_images(1, stated_input_shape(model))
        given = to_range(shipped, config.value_range)
    sample, normalisation = read_sample(
        given,
        normalisation,
        channels=expected_channels(model),
        value_range=config.value_range,
    )
    device = next(model.parameters(), torch.empty(0)).device
    keyword = sample.keyword or input_keyword(model)
    inputs = _given(normalisation, sample.images[:1].to(device))
    return split_candidates(
        model, lambda values: output.call(model, values, keyword), inputs
    )


def counted_flops(forward: Any) -> int | None:
    """Floating-point operations of one call; None where none can be counted."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # The counter sees nothing inside a fused kernel.
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        forward()
    return counter.get_total_flops() or None


def _given(normalisation: Normalisation, pixels: Tensor) -> Tensor:
    inputs = normalisation.apply(pixels)
    return inputs.clone() if inputs is pixels else inputs


def _path(cut: AnyCut) -> str | None:
    return getattr(cut, "path", None)


def _record(
    split: Split, cut: AnyCut, layout: FeatureLayout, sent: Tensor
) -> SplitRecord:
    chosen = f", {cut.chosen}" if cut.chosen else ""
    return SplitRecord(
        name=split.name,
        place=f"output of {cut.name}{chosen}",
        shape=list(sent.shape[1:]),
        bytes_per_image=sent.numel() * sent.element_size(),
        layout=layout.kind,
        layout_source=layout.source,
        layout_certain=layout.certain,
        prefix_tokens=layout.prefix_tokens,
        grid=layout.grid,
    )
