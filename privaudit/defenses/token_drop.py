"""A random share of the patch tokens is not sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field

from privaudit.defenses._token_entry import entry_of, tokens_changed
from privaudit.defenses._tokens import require_tokens
from privaudit.defenses._traces import empty_tokens, ramp
from privaudit.defenses.base import (
    FEATURES,
    Defense,
    Detection,
    FeatureEvidence,
)
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privaudit.exposure import FeatureExposure
    from privaudit.types import FeatureLayout


class TokenDrop(Defense):
    """Leaves out ``round(r·N)`` of the N patch tokens of each image, drawn anew.

    What is left stays in its order, prefix tokens included. ``output`` drops at the
    cut: the tokens that are sent have seen the others. ``input`` drops behind the
    position embedding: the device computes on what is left, so that nothing of a
    dropped patch is sent; the attacker's own forward pass has all slots as ever.
    Source: Lei 2025, section 5.5, which drops half of shuffled tokens: put
    ``TokenShuffle()`` beside it.
    """

    name: ClassVar[str] = "token_drop"
    title: ClassVar[str] = "Token drop"
    source: ClassVar[str] = "Lei 2025"
    exposures: ClassVar[frozenset[str]] = frozenset({FEATURES})
    does_not_protect: ClassVar[str] = (
        "The patches of the tokens that are sent, and what these have seen of the "
        "others: neighbouring patches fill the gaps."
    )

    ratio: float = Field(default=0.5, gt=0, lt=1)
    """r_drop, share of the patch tokens that are left out."""
    where: Literal["output", "input"] = "output"
    """At the cut, or behind the position embedding."""
    at: str | None = None
    """For ``input``: the module whose input are the tokens with their positions; None:
    the first one behind which permuted patches come out permuted, found by trying."""

    @property
    def acts_inside(self) -> bool:
        """See :class:`~privaudit.defenses.Defense`."""
        return self.where == "input"

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """See :class:`~privaudit.defenses.Defense`."""
        prefix = require_tokens(self, layout)
        if self.where == "input":
            self._require_dropped(sent.shape[1] - prefix, _patches(layout))
            return sent
        return self._without(sent, prefix, generator)

    @contextmanager
    def on_device(
        self,
        model: nn.Module,
        exposure: FeatureExposure,
        run: Callable[[], Any],
        generator: torch.Generator,
    ) -> Iterator[None]:
        """See :class:`~privaudit.defenses.Defense`."""
        if self.where == "output":
            yield
            return
        prefix = require_tokens(self, exposure.layout)
        tokens = prefix + _patches(exposure.layout)
        path = entry_of(model, exposure, run, tokens=tokens, at=self.at)

        def drop(x: Tensor) -> Tensor:
            return self._without(x, prefix, generator)

        with tokens_changed(model, path, tokens, drop):
            yield

    def _without(self, x: Tensor, prefix: int, generator: torch.Generator) -> Tensor:
        """(batch, tokens, channels) → fewer tokens, other ones in each image."""
        patches = x.shape[1] - prefix
        kept = patches - self._dropped(patches)
        order = torch.rand(len(x), patches, generator=generator).argsort(1)
        chosen = order[:, :kept].sort(1).values.to(x.device) + prefix
        rows = torch.arange(len(x), device=x.device)[:, None]
        return torch.cat([x[:, :prefix], x[rows, chosen]], 1)

    def _dropped(self, patches: int) -> int:
        count = round(self.ratio * patches)
        if 0 < count < patches:
            return count
        raise ConfigError(
            f"defense {self.name}.ratio",
            expected=f"a share that leaves out some of {patches} patch token(s)",
            got=f"{self.ratio}, which is {count} of them",
            hint="Choose a ratio nearer to one half.",
        )

    def _require_dropped(self, got: int, patches: int) -> None:
        if got == patches - self._dropped(patches):
            return
        raise ConfigError(
            f"defense {self.name}",
            expected=f"features of {patches - self._dropped(patches)} patch tokens, "
            "computed inside its on_device()",
            got=f"features of {got}",
            hint='where="input" changes what the device computes: pass images, or use '
            'where="output" for features.',
        )

    @classmethod
    def detect_features(cls, seen: FeatureEvidence) -> Detection | None:
        """See :class:`~privaudit.defenses.Defense`."""
        if seen.layout.kind != "tokens":
            return None
        share = empty_tokens(seen)
        least = 1 / max(1, seen.reference.shape[1] - seen.layout.prefix_tokens)
        return Detection(
            defense=cls.name, confidence=ramp(share, least / 2),
            evidence=f"{share:.0%} of the patch tokens are missing",
            estimate={"ratio": share},
        )  # fmt: skip


def _patches(layout: FeatureLayout) -> int:
    if layout.grid is not None:
        return math.prod(layout.grid)
    raise ConfigError(
        "defense token_drop",
        expected="tokens whose grid of patches is known",
        got="no grid",
        hint='Pass Split(name, grid=(rows, columns)), or use where="output".',
    )
