"""Which axis of captured features is what: told, known, tried out, or guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from privaudit.adapters import hint_for
from privaudit.config import FeatureKind, Split
from privaudit.errors import ConfigError
from privaudit.exposure.cut_check import require_batch_first
from privaudit.inventory._layout_probe import probe_images, scores
from privaudit.inventory._layout_shapes import (
    fits_image,
    layouts_of,
    matches_hint,
    usual,
)
from privaudit.inventory.records import Finding
from privaudit.types import FeatureLayout

Capture = Callable[[Tensor], Tensor]
"""The features of images, without their graph."""
_SURE = {"tokens": 0.5, "nchw": 0.3, "nhwc": 0.3}
"""A correlation below this says nothing: of the many grids of tokens one always seems
to fit a little. Right layouts of untrained models reach .47 to 1 for maps, .94 to 1 for
tokens; wrong ones up to .1 and .67."""
_AHEAD = 0.05
"""How far the best layout has to be ahead of the next."""


@dataclass(frozen=True, eq=False)
class _Case:
    """What is asked: the features at one place, and what the user said of them."""

    model: nn.Module
    split: Split
    path: str
    sent: Tensor
    image: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image's features."""
        return (1, *self.sent.shape[1:])


def find_layout(
    model: nn.Module,
    split: Split,
    images: Tensor,
    capture: Capture,
    *,
    path: str | None = None,
) -> FeatureLayout:
    """Find the layout of the features that ``capture`` gives for images.

    Args:
        model: The whole model.
        split: Its ``layout``, ``prefix_tokens`` and ``grid`` count before all else.
        images: (batch, channels, height, width), as ``capture`` takes them; the first
            is used.
        capture: Called once, on ten images.
        path: Name of the module at the cut; None: as in ``split``.

    Raises:
        ConfigError: As :func:`layout_of`; or the first axis is not the batch.
    """
    name = split.name.partition("#")[0] if path is None else path
    shown = probe_images(images[0])
    sent = capture(shown)
    require_batch_first(split.name, sent, len(shown))
    height, width = images.shape[2:]
    return layout_of(model, split, sent, size=(height, width), path=name)


def layout_of(
    model: nn.Module,
    split: Split,
    sent: Tensor,
    *,
    size: tuple[int, int],
    path: str,
) -> FeatureLayout:
    """Find the layout of features.

    What the user said comes first, then what the layer or its library says, then a
    probe (change a small square of the image and see which positions move), then the
    shape alone, which is marked as uncertain.

    Args:
        model: The whole model.
        split: Its ``layout``, ``prefix_tokens`` and ``grid`` count before all else.
        sent: (10, …) features of ``probe_images(image)``.
        size: (height, width) of the image in pixels.
        path: Name of the module at the cut.

    Raises:
        ConfigError: Nothing decides, with the argument that would; or what the user
            said does not fit.
    """
    case = _Case(model, split, path, sent, size)
    left = _told(case, layouts_of(case.shape, size, split.prefix_tokens))
    told = _words(split)
    if len(left) == 1:
        return replace(left[0], source=told or f"shape {case.shape}: no other reading")
    left, source = _known(case, left)
    if len(left) == 1:
        return replace(left[0], source="; ".join(filter(None, [told, source])))
    found = _probed(left, sent, size)
    if found is None:
        _refuse_channels_first(case)
        found = _guessed(case, left)
    if found is None:
        raise _undecided(case, left)
    return replace(found, source="; ".join(filter(None, [told, source, found.source])))


def about_layout(layout: FeatureLayout, name: str) -> Iterator[Finding]:
    """Say so where a layout was guessed."""
    if not layout.certain:
        yield Finding(
            code="layout-guessed",
            severity="warning",
            where=name,
            title="The layout of the features was guessed",
            text=f"Only the shape spoke for {in_words(layout)} at `{name}`.",
            remedy="Pass Split(name, layout=..., prefix_tokens=..., grid=...).",
        )


def in_words(layout: FeatureLayout) -> str:
    """``tokens, 5 before a grid of 14×14``, for the report."""
    grid = "" if layout.grid is None else f"a grid of {layout.grid[0]}×{layout.grid[1]}"
    if layout.kind == "tokens":
        grid = grid or "the others, which are no grid"
        return f"tokens, {layout.prefix_tokens} before {grid}"
    return f"{layout.kind}, {grid}" if grid else layout.kind


def _told(case: _Case, layouts: Sequence[FeatureLayout]) -> list[FeatureLayout]:
    """Those that agree with what the user said."""
    said = case.split
    left = [
        x
        for x in layouts
        if said.layout in (None, x.kind)
        and (said.prefix_tokens is None or said.prefix_tokens == x.prefix_tokens)
        and (said.grid is None or said.grid == x.grid)
    ]
    if left:
        return left
    if not layouts:
        raise ConfigError(
            f"split {said.name}",
            expected="features with two, three or four axes, the first the batch",
            got=f"shape {case.shape}",
            hint="Cut at a block whose output is tokens, a map or a vector.",
        )
    raise ConfigError(
        f"split {said.name}",
        expected=f"a layout that fits the shape {case.shape}",
        got=_words(said),
        hint="prefix_tokens plus rows times columns of grid is the number of tokens; "
        "leave arguments out to have them found.",
    )


def _words(split: Split) -> str:
    """What the user said."""
    said = split.model_dump(include={"layout", "prefix_tokens", "grid"})
    listed = [f"{k}={v!r}" for k, v in said.items() if v is not None]
    return f"given: {', '.join(listed)}" if listed else ""


def _known(
    case: _Case, layouts: list[FeatureLayout]
) -> tuple[list[FeatureLayout], str]:
    """Those that agree with the layer at the cut and with its library."""
    source = ""
    kind, layer = _kind_of_layer(case)
    if kind is not None and any(x.kind == kind for x in layouts):
        layouts = [x for x in layouts if x.kind == kind]
        source = layer
    hint = hint_for(case.model, case.path)
    if hint is not None and len(layouts) > 1:
        agree = [x for x in layouts if matches_hint(x, hint, case.image)]
        if agree:
            return agree, hint.source
    return layouts, source


_CHANNELS_FIRST = (
    nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.InstanceNorm2d, nn.GroupNorm,
    nn.Dropout2d, nn.PixelShuffle, nn.PixelUnshuffle,
)  # fmt: skip
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)


def _kind_of_layer(case: _Case) -> tuple[FeatureKind | None, str]:
    """What torch's own layers always put out."""
    try:
        layer = case.model.get_submodule(case.path)
    except AttributeError:  # a node of a traced graph
        return None, ""
    name = type(layer).__name__
    if len(case.shape) == 4 and isinstance(layer, _CHANNELS_FIRST):
        return "nchw", f"{name}: channels first"
    # Subclasses of LayerNorm turn the axes around.
    if type(layer) in _CHANNELS_LAST or isinstance(layer, nn.MultiheadAttention):
        kind: FeatureKind = "nhwc" if len(case.shape) == 4 else "tokens"
        return kind, f"{name}: channels last"
    return None, ""


def _probed(
    layouts: list[FeatureLayout], sent: Tensor, size: tuple[int, int]
) -> FeatureLayout | None:
    """The layout that foretells what moves; None where none does clearly."""
    ranked = sorted(
        zip(scores(sent, size, layouts), range(len(layouts)), strict=True),
        reverse=True,
    )
    if len(ranked) < 2:
        return None
    (best, index), (second, _) = ranked[:2]
    if best < _SURE[layouts[index].kind] or best - second < _AHEAD:
        return None
    told = f"probe: squares of the image moved these positions (correlation {best:.2f})"
    return replace(layouts[index], source=told)


def _refuse_channels_first(case: _Case) -> None:
    """Tokens may lie on the last axis, before somebody turns it to the front."""
    if len(case.shape) != 3 or case.split.layout is not None:
        return
    turned = layouts_of((1, case.shape[2], case.shape[1]), case.image)
    found = _probed(turned, case.sent.transpose(1, 2), case.image)
    if found is not None:
        raise ConfigError(
            f"split {case.split.name}",
            expected="tokens as (batch, tokens, channels)",
            got=f"shape {case.shape} with the tokens on the last axis",
            hint="Cut one step before or behind, where the map is not flattened or is "
            "turned around.",
        )


def _guessed(case: _Case, layouts: list[FeatureLayout]) -> FeatureLayout | None:
    """The only layout of the usual form, if there is one."""
    left = [x for x in layouts if usual(x) and fits_image(x, case.image)]
    if len(left) != 1:
        return None
    return replace(left[0], source="guessed from the shape", certain=False)


def _undecided(case: _Case, layouts: list[FeatureLayout]) -> ConfigError:
    said = case.split
    kinds = {x.kind for x in layouts}
    if len(kinds) > 1:
        needed = "layout="
    else:
        open_ones = [n for n in ("prefix_tokens", "grid") if getattr(said, n) is None]
        needed = " and ".join(f"{n}=" for n in open_ones)
    likely = [x for x in layouts if fits_image(x, case.image)] or layouts
    return ConfigError(
        f"split {said.name}",
        expected=f"features that show which axis is what, not only shape {case.shape}",
        got=f"{len(layouts)} possible readings, such as "
        + "; ".join(in_words(x) for x in likely[:3]),
        hint=f"Pass Split({said.name!r}, {needed}...) to settle it.",
    )
