"""How the file of an embedded prior is to be read, and its card."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from privaudit._prior_card import PriorCard as PriorCard
from privaudit.priors.diffusion.schedule import Prediction


class NetworkFacts(BaseModel):
    """How the file of an embedded prior is to be read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["privaudit-prior"] = "privaudit-prior"
    version: Literal["1"] = "1"
    widths: tuple[int, ...]
    time_width: int
    prediction: Prediction = "v_prediction"
    schedule: Literal["cosine"] = "cosine"
    levels: int = 1000
    card: PriorCard
