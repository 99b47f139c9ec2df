"""The settings of an audit, as they reach disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from privaudit.errors import ConfigError
from privaudit.verdict import Policy

OptimizerName = Literal["sgd", "adamw"]


class Client(BaseModel):
    """How the client makes the step, or the steps, of which the attacker sees the sum.

    Raises:
        ConfigError: Several steps without a learning rate, or with AdamW; a momentum
            for AdamW.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_size: int | None = Field(default=None, ge=1)
    """Images in one step; None: all images, in equal parts; 1: one image a step."""
    local_steps: int = Field(default=1, ge=1)
    """Steps before sending, each on images of its own. Of more than one the weight
    difference is sent, as in FedAvg."""
    lr: float | None = Field(default=None, gt=0)
    """Learning rate; with one SGD step it scales the update and hides nothing."""
    optimizer: OptimizerName = "sgd"
    """As in ``torch.optim``. Of AdamW one step, which shows little but signs."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Of SGD; it starts at zero, so one step does not know it."""
    mode: Literal["train", "as_is"] = "train"
    """``train``: the step runs in train mode; ``as_is``: modes stay as given."""
    autocast: Literal["bfloat16", "float16"] | None = None
    """What the step's forward pass and loss run under, as with ``torch.autocast``;
    ``float16`` with a loss scale that fits. None: no autocast but the step's own."""

    @model_validator(mode="after")
    def _can_be_audited(self) -> Client:
        if self.optimizer == "adamw":
            require_one_step("Client.local_steps", self.local_steps)
            if self.momentum:
                raise ConfigError(
                    "Client.momentum",
                    expected="none: momentum belongs to SGD",
                    got=f"{self.momentum:g} with adamw",
                    hint="AdamW has its own averages, which one step does not show.",
                )
        if self.local_steps > 1 and self.lr is None:
            raise ConfigError(
                "Client.lr",
                expected=f"the learning rate of {self.local_steps} local steps",
                got="None",
                hint="The second step starts where the first has led: without lr it "
                "cannot be repeated. Pass lr=.",
            )
        return self

    def images_of(self, total: int) -> int:
        """How many of ``total`` images one client takes, in all its steps.

        Raises:
            ConfigError: Several steps, and images that do not fill them.
        """
        if self.local_steps == 1:
            return self.batch_size or total
        size = (self.batch_size or total // self.local_steps) * self.local_steps
        if size == 0 or total % size:
            raise ConfigError(
                "sample",
                expected=f"images for {self.local_steps} local steps a client"
                + (f" of {self.batch_size} each" if self.batch_size else ""),
                got=f"{total} image(s)",
                hint=f"Pass a multiple of {size or self.local_steps} images.",
            )
        return size


def require_one_step(where: str, steps: int) -> None:
    """Refuse more than one step of AdamW.

    Raises:
        ConfigError: More than one.
    """
    if steps > 1:
        raise ConfigError(
            where,
            expected="one local step of AdamW",
            got=f"{steps}",
            hint="Several AdamW steps are not modelled: audit one of them, or several "
            "of SGD.",
        )


FeatureKind = Literal["tokens", "nchw", "nhwc", "vector"]


class Split(BaseModel):
    """Where a model is cut in two: the device sends what comes out there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Dotted path of a module, such as ``blocks.6``; ``l#1`` is the second call of
    ``l``; for torchvision and timm also a node of the traced graph."""
    select: int | str | None = None
    """Which element of a tuple or dict is sent; None: the main tensor, as recorded."""
    layout: FeatureKind | None = None
    """``tokens`` (B, N, C), ``nchw``, ``nhwc`` or ``vector`` (B, C); None: found."""
    prefix_tokens: int | None = Field(default=None, ge=0)
    """Class, register and distillation tokens before the patches; None: found."""
    grid: tuple[int, int] | None = None
    """Patches as (rows, columns); None: found."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name=name, **settings)


class Knowledge(BaseModel):
    """What the attacker knows beside the model, its loss and the gradient."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: Literal["known", "inferred", "joint"] = "known"
    """``known``: given to the attacker; ``inferred``: read off the gradient;
    ``joint``: optimised together with the images, as probabilities."""


class Budget(BaseModel):
    """How long an audit may take. None means no bound."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float | None = Field(default=None, gt=0)
    """Wall clock for the whole audit, shared over its attacks."""
    iterations: int | None = Field(default=None, ge=1)
    """Cap for each optimisation."""
    restarts: int | None = Field(default=None, ge=1)
    """Cap for the restarts of each optimisation."""


PRESETS: dict[str, Budget] = {
    "quick": Budget(seconds=60),
    "standard": Budget(seconds=600),
    "thorough": Budget(),
}


def resolve_budget(budget: str | Budget) -> Budget:
    """Turn a preset name into its budget.

    Raises:
        ConfigError: Not one of quick, standard, thorough.
    """
    if isinstance(budget, Budget):
        return budget
    if budget not in PRESETS:
        raise ConfigError(
            "Auditor.budget",
            expected=f"one of {', '.join(PRESETS)}, or Budget(seconds=...)",
            got=repr(budget),
            hint="Name a preset or build a Budget.",
        )
    return PRESETS[budget]


class DefenseConfig(BaseModel):
    """A defense by name and settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)


class AuditConfig(BaseModel):
    """Everything an :class:`~privaudit.Auditor` was told, except live objects."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: list[float] | None = None
    """Per channel, in [0, 1] units; None: the model takes images as they are."""
    std: list[float] | None = None
    value_range: tuple[float, float] | None = None
    """Black and white in the units of the images; None: floats are in [0, 1]."""
    shown_bands: list[int] | None = None
    """Which bands pictures show, from 1; None: the first three."""
    loss: str = "cross_entropy"
    """``cross_entropy`` or the name of the user's callable."""
    training_step: str | None = None
    """Name of the user's callable, if one was given."""
    split: Split | None = None
    """Where the model is cut in split inference; None: its gradient is audited."""
    priors: list[str] = Field(default_factory=list)
    """Names of what the attacker was handed beside the model."""
    client: Client = Field(default_factory=Client)
    knowledge: Knowledge = Field(default_factory=Knowledge)
    attacks: str | list[str] = "auto"
    """``auto``: climb the ladder until something is exact; ``all``; or labels."""
    attack_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The settings that the user passed, per attack label."""
    defenses: list[DefenseConfig] = Field(default_factory=list)
    """What stands between client and attacker, in the order in which it acts."""
    countermeasures: str | list[str] = "auto"
    """``auto``: those that answer what is stated or found; ``none``; or names."""
    policy: Policy = Field(default_factory=Policy)
    budget: Budget = PRESETS["standard"]
    seed: int = 0
    device: str | None = None


def bands_of(chosen: Sequence[int] | None, channels: int) -> list[int]:
    """One band (grey) or three (red, green, blue), counted from 1.

    The first three, or the first of fewer, unless others were chosen.
    """
    if chosen is not None:
        return list(chosen)
    return [1, 2, 3] if channels >= 3 else [1]
