"""What defenses of tokens share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.defenses.base import Defense
    from privaudit.types import FeatureLayout


def require_tokens(defense: Defense, layout: FeatureLayout) -> int:
    """How many prefix tokens stand before the patches.

    Raises:
        ConfigError: What is sent are no tokens.
    """
    if layout.kind == "tokens":
        return layout.prefix_tokens
    raise ConfigError(
        f"defense {defense.name}",
        expected="a cut at which tokens are sent, (batch, tokens, channels)",
        got=f"features of layout {layout.kind}",
        hint="Cut the model where it sends tokens, or leave the defense out.",
    )
