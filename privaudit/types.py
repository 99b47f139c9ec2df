"""What passes from stage to stage. Frozen dataclasses that hold tensors.

Images are float32 in [0, 1] with shape (batch, channels, height, width) everywhere
outside the user's model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from privaudit.verdict import AttackState as AttackState

if TYPE_CHECKING:
    from privaudit._pixels import Normalisation
    from privaudit.config import FeatureKind
    from privaudit.exposure import FeatureExposure, GradientExposure
    from privaudit.priors.diffusion import PriorCard
    from privaudit.tape import Tape


@dataclass(frozen=True, eq=False)
class Batch:
    """What a client holds. Only exposures and metrics ever see it.

    Attributes:
        images: (batch, channels, height, width) in [0, 1].
        labels: (batch,) class ids, or whatever the user's loss takes; None when the
            user's training step needs none.
    """

    images: Tensor
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.images)

    def select(self, rows: slice) -> Batch:
        """The samples of ``rows``."""
        labels = self.labels
        return Batch(self.images[rows], None if labels is None else labels[rows])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def inputs(self, normalisation: Normalisation) -> Tensor:
        """What the model is given: a copy, which it may change in place."""
        inputs = normalisation.apply(self.images)
        return inputs.clone() if inputs is self.images else inputs


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """What a client of a model on token ids holds: text, or categories.

    Attributes:
        ids: (batch, positions), integers.
        labels: As in :class:`Batch`.
        counted: (batch, positions); False where padding stands, which is nobody's.
        keyword: How the model calls its ids; None: it takes them by position.
        extras: Further inputs by name, such as ``attention_mask``.
    """

    ids: Tensor
    labels: Tensor | None
    counted: Tensor
    keyword: str | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(1, 1, positions): one row of one channel."""
        return 1, 1, self.ids.shape[1]

    def inputs(self, _: Normalisation) -> Tensor | dict[str, Tensor]:
        """What the model is given: a copy, which it may change in place."""
        if self.keyword is None:
            return self.ids.clone()
        named = {self.keyword: self.ids, **self.extras}
        return {name: value.clone() for name, value in named.items()}


AnyBatch = Batch | TokenBatch


@dataclass(frozen=True, eq=False)
class Observation:
    """What the attacker sees of one client's step.

    Attributes:
        gradients: Gradient per shared parameter, by the user's own names. A
            parameter that took no part in the forward pass is absent.
        batch_size: How many images the step used.
        image_shape: (channels, height, width) that the model takes; (1, 1, positions)
            for token ids.
    """

    gradients: Mapping[str, Tensor]
    batch_size: int
    image_shape: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class AttackerKnowledge:
    """What the attacker was given beside model and observation.

    Attributes:
        labels: (batch,), or None when they are to be inferred.
        masks: The client's own masks: for attacks declared diagnostic only.
        joint: True when unknown labels are optimised instead of read off.
    """

    labels: Tensor | None = None
    masks: Tape | None = None
    joint: bool = False


Gradients = Mapping[str, Tensor]
GradientComparison = Callable[[Gradients, Gradients], tuple[Gradients, Gradients]]
"""(guess, observed) → what of them is compared: a countermeasure's part of a loss."""
FeatureComparison = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""The same of features, (rows, …) each."""
FeatureCorruption = Callable[[Tensor, torch.Generator], Tensor]
"""Clean features and draws → features as a defense would send them."""


@dataclass(frozen=True, eq=False)
class Target:
    """Whom the attack is against: the model, how it is exposed, what is known.

    Attributes:
        model: The model with its weights.
        exposure: How a gradient is made and recomputed; holds no private data.
        knowledge: What else the attacker was given.
        memory: What attacks found out about the model with images of their own,
            shared between the clients of one audit.
        comparisons: What countermeasures do to both sides before they are compared.
        noise_share: Mean square of the noise in the gradient as a share of its own:
            a search need not come closer.
    """

    model: nn.Module
    exposure: GradientExposure
    knowledge: AttackerKnowledge
    memory: dict[str, object] = field(default_factory=dict)
    comparisons: Sequence[GradientComparison] = ()
    noise_share: float = 0.0


@dataclass(frozen=True)
class FeatureLayout:
    """Which axis of captured features is what.

    Attributes:
        kind: ``tokens`` (B, N, C), ``nchw``, ``nhwc``, or ``vector`` (B, C).
        prefix_tokens: Tokens before the patches: class, registers, distillation.
        grid: (rows, columns) of patches or of the map; None for vectors, and where
            tokens are no grid.
        source: What this was read from, for the report.
        certain: False where only a guess by shape spoke for it.
    """

    kind: FeatureKind
    prefix_tokens: int = 0
    grid: tuple[int, int] | None = None
    source: str = ""
    certain: bool = True


@dataclass(frozen=True, eq=False)
class FeatureObservation:
    """What the server sees of one request in split inference.

    Attributes:
        features: (batch, …) as they left the device, float.
        image_shape: (channels, height, width) that the model takes.
    """

    features: Tensor
    image_shape: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, eq=False)
class FeatureTarget:
    """Whom an attack on features is against. Holds nothing private.

    Attributes:
        model: The whole model; the exposure knows where it is cut.
        exposure: Makes the features of any guess, with their graph.
        public: (count, channels, height, width) in [0, 1]: images of the attacker's
            own, of the same kind as the private ones; None: it has none.
        priors: What the user handed over by name, such as a trained inverse network.
        memory: What attacks found out about the model, shared within one audit; also
            the best images so far under ``start``, for the next rung.
        comparisons: What countermeasures do to both sides before they are compared.
        noise_share: Mean square of the noise in the features as a share of their own:
            a search need not come closer.
        corruptions: What is done to features of the attacker's own before a network
            learns from them, so that they are like those that were sent.
    """

    model: nn.Module
    exposure: FeatureExposure
    public: Tensor | None = None
    priors: Mapping[str, object] = field(default_factory=dict)
    memory: dict[str, object] = field(default_factory=dict)
    comparisons: Sequence[FeatureComparison] = ()
    noise_share: float = 0.0
    corruptions: Sequence[FeatureCorruption] = ()

    def compared(self, guess: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Guess and observation as the countermeasures look at them, (rows, …) each."""
        for compare in self.comparisons:
            guess, observed = compare(guess, observed)
        return guess, observed

    def corrupted(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Clean features (batch, …) as defenses would have sent them."""
        for corrupt in self.corruptions:
            features = corrupt(features, generator)
        return features


@dataclass(frozen=True, eq=False)
class TokenTarget:
    """Whom an attack on token ids is against.

    Attributes:
        model: The model with its weights.
        exposure: How a gradient is made and recomputed; holds no private data.
        labels: (batch,), or None when the attacker does not have them.
        keyword: How the model calls its ids; None: it takes them by position.
        extras: Names and types of its further inputs; their values are private.
        memory: What was found out about the model, shared between the clients.
        language: True when the labels are the ids themselves, as language models
            are trained; they are then as private as the ids, and ``labels`` is None.
    """

    model: nn.Module
    exposure: GradientExposure
    labels: Tensor | None = None
    keyword: str | None = None
    extras: Mapping[str, torch.dtype] = field(default_factory=dict)
    memory: dict[str, object] = field(default_factory=dict)
    language: bool = False

    def batch(self, ids: Tensor) -> TokenBatch:
        """Ids of the attacker's own as the model takes them: no padding, one text."""
        size = len(ids)
        labels = self.labels
        if self.language:
            labels = ids
        elif labels is None:
            labels = torch.zeros(size, dtype=torch.long, device=ids.device)
        else:
            labels = labels[torch.arange(size, device=labels.device) % len(labels)]
        if not labels.is_floating_point():
            labels = labels.clamp_min(0)  # an ignored label (-100) would hide all
        extras = {
            name: torch.full_like(ids, int(name == "attention_mask"), dtype=dtype)
            for name, dtype in self.extras.items()
        }
        counted = torch.ones_like(ids, dtype=torch.bool)
        return TokenBatch(ids, labels, counted, self.keyword, extras)


@dataclass(frozen=True)
class FormOutcome:
    """One form of an attack: whether it applied, and why or why not."""

    form: str
    applied: bool
    reason: str


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack made of one observation.

    Attributes:
        images: (batch, channels, height, width) in [0, 1]; None when the attack
            does not apply.
        state: How it ended for this observation.
        reason: Why, where the state needs a reason.
        form: The form that recovered the images.
        residual: Relative error of the recomputed part of the observation.
        forms: Every form with the reason why it applied or not.
        labels: Class ids that the attacker read off; None where it refused to.
        notes: Facts for the reader, such as why labels were refused.
        masks: The client's masks, as far as the attack found them.
        determined: True where the form that recovered the images leaves no choice of
            others, whether or not noise keeps them from being exact.
        search: How an optimisation went; None for closed forms.
        prior: What the prior was that it drew from, where there was one.
        unguided: (1, C, H, W) in [0, 1], what that prior draws without any features.
        other: A second answer of the same attack, as images: an audit that knows the
            truth counts, for each image, the one that shows more.
    """

    images: Tensor | None
    state: AttackState
    reason: str = ""
    form: str = ""
    residual: float | None = None
    forms: Sequence[FormOutcome] = ()
    labels: Tensor | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    masks: Tape | None = None
    determined: bool = False
    search: Search | None = None
    prior: PriorCard | None = None
    unguided: Tensor | None = None
    other: Tensor | None = None


@dataclass(frozen=True)
class LeakedIds:
    """Ids that a gradient shows without their order or their number.

    Attributes:
        table: Name of the embedding's weight.
        positions: Which positions of the input take their rows from it.
        ids: The ids, sorted.
    """

    table: str
    positions: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TokenReconstruction:
    """What an attack on token ids made of one observation.

    Attributes:
        leaked: Ids per embedding; None when nothing shows them.
        sequence: (batch, positions) ids in their order, -1 where unknown; None when
            the order is not known at all.
        state: How it ended; ``exact`` only for whole sequences.
        reason: Why, where the state needs a reason.
        form: The form that recovered the order, else the one that found the ids.
        residual: Relative error of the part of the observation that it explains.
        forms: Every form with the reason why it applied or not.
    """

    leaked: Sequence[LeakedIds] | None
    sequence: Tensor | None
    state: AttackState
    reason: str = ""
    form: str = ""
    residual: float | None = None
    forms: Sequence[FormOutcome] = ()


@dataclass(frozen=True, eq=False)
class Search:
    """How an optimisation went.

    Attributes:
        loss_start: Matching loss at the start.
        loss_final: Matching loss of the iterate that is returned; of a mean of several
            searches that fits worse than the best of them, of that one (and a note).
        iterations: All that were made, over all restarts.
        restarts: How many runs.
        unknowns: Values that were optimised.
        loss_truth: Matching loss at the truth; filled in by the audit afterwards.
        curve: (iteration, total loss) of the best run.
        pictures: (iteration, image in [0, 1]) of the best run, first image only.
        path: Whether it ran for one client or for several at once; and whether its
            iterations were replayed or compiled (``_replay``) at last.
    """

    loss_start: float
    loss_final: float
    iterations: int
    restarts: int
    unknowns: int
    loss_truth: float | None = None
    curve: Sequence[tuple[int, float]] = ()
    pictures: Sequence[tuple[int, Tensor]] = ()
    path: str = "one client"


Mode = Literal["train", "as_is"]
Autocast = Literal["bfloat16", "float16"]
