"""A generator of the StyleGAN kind that was handed over: checked, then called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._loading import load_model
from privaudit._prior_card import PriorCard
from privaudit.errors import ConfigError

PRIOR = "gan"
"""Its name among the priors that a user hands over."""
WHERE = f"priors[{PRIOR!r}]"
_PROBES = 4
_FAR = 10.0
"""No pixel on [-1, 1] lies so far out: such images are on another scale."""


@dataclass(frozen=True, eq=False)
class StyleGenerator:
    """z → styles w⁺ → images.

    Attributes:
        module: With ``mapping`` and ``synthesis``; a copy, in eval mode.
        z_dim: Numbers in z.
        classes: How many classes it knows; 0: none are asked for.
        channels: Of its images.
        card: What is known of it.
        note: What is odd about its images; empty: nothing.
    """

    module: nn.Module
    z_dim: int
    classes: int
    channels: int
    card: PriorCard
    note: str = ""

    def styles(self, z: Tensor, logits: Tensor | None) -> Tensor:
        """(rows, layers, width) for ``z``, (rows, z_dim), and logits of the class."""
        return _styles(self.module, z, logits)

    def images(self, styles: Tensor, size: tuple[int, int]) -> Tensor:
        """(rows, C, H, W), 0 black and 1 white, not clamped, for w⁺."""
        drawn = (_drawn(self.module, styles).float() + 1) / 2
        if drawn.shape[2:] == size:
            return drawn
        return F.interpolate(
            drawn, size, mode="bilinear", antialias=True, align_corners=False
        )

    @torch.no_grad()
    def sample(self, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """(1, C, H, W) in [0, 1], drawn without anything to match."""
        z = torch.randn(1, self.z_dim, generator=generator)
        z = z.to(device_of(self.module))
        logits = z.new_zeros(1, self.classes) if self.classes else None
        return self.images(self.styles(z, logits), size).clamp(0, 1)


def generator_from(
    given: object, image_shape: tuple[int, int, int], device: torch.device
) -> StyleGenerator:
    """The generator that a user handed over, tried once.

    Args:
        given: A module, or where a function builds one, as ``--model`` is named.
        image_shape: (channels, height, width) that the client takes.
        device: Where the audit runs.

    Raises:
        ConfigError: Not a generator of this kind, or of other images.
    """
    if isinstance(given, (str, Path)):
        given = load_model(str(given), WHERE)
    if not isinstance(given, nn.Module):
        raise _error(
            "a module with mapping and synthesis, or path.py:factory",
            type(given).__name__,
            "Wrap the generator in a torch.nn.Module with both.",
        )
    for name in ("mapping", "synthesis"):
        if not callable(getattr(given, name, None)):
            raise _error(
                "a module with mapping(z) and synthesis(w⁺)",
                f"{type(given).__name__} without {name}",
                "Wrap the generator in a torch.nn.Module with both.",
            )
    z_dim = getattr(given, "z_dim", None)
    if not isinstance(z_dim, int) or z_dim < 1:
        raise _error(
            "z_dim, the count of numbers in z", repr(z_dim), "Set it on the module."
        )
    module = copy.deepcopy(given).to(device).eval().requires_grad_(False)
    drawn = _tried(module, z_dim)
    _require_channels(drawn.shape[1], image_shape[0])
    return StyleGenerator(
        module, z_dim, _classes(module), drawn.shape[1], _card(module, drawn),
        _oddity(drawn),
    )  # fmt: skip


def device_of(module: nn.Module) -> torch.device:
    """Where its first parameter is."""
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _tried(module: nn.Module, z_dim: int) -> Tensor:
    """Images of some z, drawn twice: they must be images, and the same ones."""
    fixed = torch.Generator().manual_seed(0)
    z = torch.randn(_PROBES, z_dim, generator=fixed).to(device_of(module))
    classes = _classes(module)
    logits = z.new_zeros(_PROBES, classes) if classes else None
    try:
        with torch.no_grad(), torch.random.fork_rng():
            drawn, again = (_drawn(module, _styles(module, z, logits)) for _ in "12")
    except ConfigError:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise _error(
            "mapping(z), for generators with classes mapping(z, embedding), and "
            "synthesis(w⁺) that run",
            f"{type(error).__name__}: {str(error).splitlines()[0]}",
            f"They get z, {tuple(z.shape)}, and w⁺, (rows, layers, width).",
        ) from error
    if not bool(drawn.isfinite().all()) or float(drawn.abs().max()) > _FAR:
        raise _error(
            "images with values in [-1, 1], -1 black and 1 white",
            f"values from {float(drawn.min()):g} to {float(drawn.max()):g}",
            "Scale what synthesis returns.",
        )
    if not torch.allclose(drawn, again, atol=1e-4):
        raise _error(
            "the same image from the same w⁺",
            "two that differ",
            'Fix the noise: StyleGAN takes synthesis(w, noise_mode="const").',
        )
    return drawn


def _drawn(module: nn.Module, styles: Tensor) -> Tensor:
    synthesis: Callable[[Tensor], Any] = module.synthesis  # type: ignore[assignment]
    drawn = synthesis(styles)
    if isinstance(drawn, Tensor) and drawn.dim() == 4 and len(drawn) == len(styles):
        return drawn
    raise _error(
        f"images of shape ({len(styles)}, C, H, W) from synthesis(w⁺)",
        _shape(drawn),
        "Let synthesis return images alone.",
    )


def _styles(module: nn.Module, z: Tensor, logits: Tensor | None) -> Tensor:
    mapping: Callable[..., Any] = module.mapping  # type: ignore[assignment]
    if logits is None:
        w = mapping(z)
    else:
        share, table = logits.softmax(1), _table(module)
        w = mapping(z, share if table is None else share @ table.to(share))
    layers = getattr(module, "num_ws", None)
    if isinstance(w, Tensor) and w.dim() == 2 and isinstance(layers, int):
        w = w[:, None].expand(-1, layers, -1)
    if not isinstance(w, Tensor) or w.dim() != 3 or len(w) != len(z):
        raise _error(
            "styles of shape (rows, layers, width) from mapping(z), or (rows, width) "
            "and num_ws, the count of layers",
            f"{_shape(w)}, num_ws {layers!r}",
            "Set num_ws on the module, or let mapping repeat w for each layer.",
        )
    return w


def _classes(module: nn.Module) -> int:
    table = _table(module)
    count = getattr(module, "num_classes", 0 if table is None else len(table))
    if isinstance(count, int) and (table is None or len(table) == count):
        return count
    raise _error(
        "as many classes as rows of embed",
        f"num_classes {count!r}, embed {_shape(table)}",
        "Correct num_classes, or leave it out.",
    )


def _table(module: nn.Module) -> Tensor | None:
    """Embeddings of classes, (classes, width); None: it takes the shares themselves."""
    found = getattr(module, "embed", None)
    found = getattr(found, "weight", found)
    if found is None or (isinstance(found, Tensor) and found.dim() == 2):
        return found
    raise _error(
        "embed, an nn.Embedding or a tensor (classes, width)",
        _shape(found),
        "Leave embed out where mapping takes shares of classes.",
    )


def _require_channels(own: int, wanted: int) -> None:
    if own != wanted:
        raise _error(
            f"a generator of {wanted} channel(s), as the model takes them",
            f"{own} channel(s)",
            "Take one for such images, or convert what synthesis returns.",
        )


def _oddity(drawn: Tensor) -> str:
    if float(drawn.min()) >= 0:
        return (
            "no value of the generator's samples is below 0: it must draw on [-1, 1], "
            "-1 being black; on [0, 1] all images come out too bright"
        )
    return ""


def _card(module: nn.Module, drawn: Tensor) -> PriorCard:
    count = sum(p.numel() for p in module.parameters())
    return PriorCard(
        name=type(module).__name__,
        kind="style generator",
        channels=drawn.shape[1],
        size=(drawn.shape[2], drawn.shape[3]),
        parameters=count,
        learnt_from="not known; see where the generator comes from",
        good_for="images like those that it learnt from",
        not_for="any others",
    )


def _shape(value: object) -> str:
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}"
    return type(value).__name__


def _error(expected: str, got: str, hint: str) -> ConfigError:
    return ConfigError(WHERE, expected=expected, got=got, hint=hint)
