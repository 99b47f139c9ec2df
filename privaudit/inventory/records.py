"""What an inventory says, as it reaches disk. No torch here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["info", "warning", "critical"]


class StochasticCall(BaseModel):
    """One random draw of the model's forward pass, in call order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """Dotted path of the module that made the call; ``(model)`` for the model."""
    call: int
    """Which stochastic call of that module, from 0."""
    kind: str
    """``dropout``, ``attention-prob dropout``, ``drop path``, ``noise: …``."""
    p: float | None = None
    """Probability of dropping; None for noise."""
    shape: list[int] = Field(default_factory=list)
    """Shape of the mask or noise; empty where nothing is drawn."""
    active: bool = True
    """False for p = 0, where nothing is drawn."""
    hidden: bool = False
    """True when only the census below autograd saw it: no function-level handler."""
    replayable: bool = True
    in_eval: bool = False
    """True when it also draws in eval mode."""

    @property
    def name(self) -> str:
        """The call as users write it, such as ``encoder.dropout#0``."""
        return f"{self.path}#{self.call}"


class Finding(BaseModel):
    """Something worth knowing, in plain words, with a remedy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: Severity
    where: str
    title: str
    text: str
    remedy: str = ""


class Inventory(BaseModel):
    """What is in the model, and what was changed for the audit only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Class of the model."""
    input_shape: list[int]
    """(C, H, W)."""
    parameters: int
    trainable: int
    """Values that the client shares."""
    shared: list[str] = Field(default_factory=list)
    """Names of the shared parameters."""
    stochastic: list[StochasticCall] = Field(default_factory=list)
    census: bool = False
    """True once every random draw of a real forward pass was recorded. Only then
    does an empty list mean that there are none."""
    findings: list[Finding] = Field(default_factory=list)
    changes: list[str] = Field(default_factory=list)
    """What was changed inside the audit only, and put back."""
