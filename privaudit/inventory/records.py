"""What an inventory says, as it reaches disk. No torch here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["info", "warning", "critical"]
FOUND = 0.5
"""Confidence from which a defense counts as found."""


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


class SplitCandidate(BaseModel):
    """One place where a model can be cut, in call order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """As users write it: ``blocks.6``, or ``l#1`` for the second call."""
    kind: str
    """Class of the module."""
    aliases: list[str] = Field(default_factory=list)
    """Other modules that give the same values."""
    shape: list[int] = Field(default_factory=list)
    """Of one image's features."""
    bytes_per_image: int = 0
    """What a device sends, in the type that the model computes in."""
    chosen: str = ""
    """Which element is sent, where the output is a collection."""
    layout: str | None = None
    """``tokens``, ``nchw``, ``nhwc`` or ``vector``; None: not clear from itself."""
    prefix_tokens: int = 0
    grid: tuple[int, int] | None = None
    layout_source: str = ""
    client_flops: int | None = None
    """Floating-point operations of the device for one image, two for a multiply-add;
    only matrix products and convolutions count."""
    complete: bool | None = None
    """Whether all that the output depends on goes through here; None: not tried."""
    note: str = ""
    """Why it cannot be used as it is, in plain words; empty where it can."""


class Finding(BaseModel):
    """Something worth knowing, in plain words, with a remedy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: Severity
    where: str
    title: str
    text: str
    remedy: str = ""


class Detection(BaseModel):
    """What speaks for a defense, from what the attacker sees."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    defense: str
    """Its name."""
    confidence: float = Field(ge=0, le=1)
    """0: nothing speaks for it; 1: nothing else explains what was seen."""
    evidence: str
    """What was seen, in one sentence with its numbers."""
    estimate: dict[str, float] = Field(default_factory=dict)
    """Its settings as far as they show, such as ``noise_std`` or ``ratio``."""

    @property
    def found(self) -> bool:
        """Whether it counts as found."""
        return self.confidence >= FOUND


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
    detections: list[Detection] = Field(default_factory=list)
    """Defenses that what was sent speaks for, and those that the user stated."""
