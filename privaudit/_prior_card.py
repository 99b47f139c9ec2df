"""What a reader must know of a generative prior: where from, good for what."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PriorCard(BaseModel):
    """A prior in words and numbers; it is shown wherever the prior was used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """As users write it: a name, or where it was loaded from."""
    kind: Literal["pixel diffusion", "latent diffusion", "style generator"]
    channels: int
    """Of the images that it draws."""
    size: tuple[int, int] | None = None
    """Height and width that it learnt at, or was made for; None: not known."""
    parameters: int
    """Of the noise predictor, or of the generator."""
    learnt_from: str
    """Data, in words; says so where it is not known."""
    good_for: str
    not_for: str
    licence: str = ""
    images: int | None = None
    """How many it learnt from."""
    steps: int | None = None
    """Of training."""
    seconds: float | None = None
    """Of training."""
    loss: float | None = None
    """Mean squared error of what it predicts, on images held out from training."""
    denoising_db: dict[str, float] = Field(default_factory=dict)
    """PSNR of x̂₀ on held-out images, by step: "100", "300", …"""
