"""What a defense is: something between the client and what the attacker sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from privaudit._plugin import Plugin
from privaudit.errors import ConfigError
from privaudit.inventory.records import Detection as Detection

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from privaudit.config import Client
    from privaudit.exposure import FeatureExposure, GradientExposure
    from privaudit.tape import Tape
    from privaudit.types import Batch, FeatureLayout

FEATURES, GRADIENT = "features", "gradient"


@dataclass(frozen=True, eq=False)
class FeatureEvidence:
    """What an attacker on features can look at. Nothing private.

    Attributes:
        sent: (images, …), what devices sent.
        again: The same images sent a second time; None: it was recorded elsewhere.
        reference: (images, …) features of the attacker's own images through the
            client part, without any defense.
        layout: Which axis is what, of the reference.
    """

    sent: Tensor
    again: Tensor | None
    reference: Tensor
    layout: FeatureLayout


@dataclass(frozen=True, eq=False)
class GradientEvidence:
    """What an attacker on gradients can look at. Nothing private.

    Attributes:
        sent: One gradient per parameter for each of some clients.
        again: The first client's step a second time, on the same images and under
            the same masks; None: it was recorded elsewhere.
        reference: The gradient of images of the attacker's own, under masks of its
            own and without any defense.
        model: The model.
    """

    sent: Sequence[Mapping[str, Tensor]]
    again: Mapping[str, Tensor] | None
    reference: Mapping[str, Tensor]
    model: nn.Module


@dataclass(frozen=True, eq=False)
class ClientStepContext:
    """What a client has at hand when it defends its gradient.

    Attributes:
        exposure: How the gradient is made, without defenses.
        model: The client's model.
        batch: Its images and labels.
        tape: The masks that its step drew.
    """

    exposure: GradientExposure
    model: nn.Module
    batch: Batch
    tape: Tape

    def gradient_of(self, row: int) -> dict[str, Tensor]:
        """The gradient of one image alone, under its own masks."""
        part = self.batch.select(slice(row, row + 1))
        tape = self.tape.select(row, batch_size=len(self.batch))
        return self.exposure.gradient(self.model, part, tape=tape)


@dataclass(frozen=True, eq=False)
class TrainData:
    """What a trained defense learns from.

    Attributes:
        batches: Gives (images in [0, 1], labels) anew each time it is called.
        loss: (output, labels) → scalar.
        classes: How many the task has; None: as the model's head.
    """

    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    loss: Callable[[Any, Tensor], Tensor]
    classes: int | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained defense.

    Attributes:
        model: The user's model, or a copy of it that was trained on.
        defense: What acts on what is sent.
        history: (step, value) of each loss by name, for the report.
    """

    model: nn.Module
    defense: Defense
    history: Mapping[str, Sequence[tuple[int, float]]]


class Defense(Plugin):
    """Base of all defenses. A subclass acts on features, on gradients, or on both."""

    title: ClassVar[str]
    """For readers of the report."""
    source: ClassVar[str]
    """Paper, as "Surname year"."""
    exposures: ClassVar[frozenset[str]]
    """``features``, ``gradient``, or both."""
    does_not_protect: ClassVar[str]
    """What it leaves open, in one sentence for readers of the report."""
    known_to_attacks: ClassVar[bool] = False
    """True where it changes the model or the client: attacks see these as they are,
    and nothing is left to answer."""
    trained: ClassVar[bool] = False
    """True where :meth:`fit` must come first."""

    @classmethod
    def tiny(cls) -> Defense:
        """An instance that contract tests can run in a second."""
        return cls()

    @property
    def acts_inside(self) -> bool:
        """True where it changes what the device computes, by :meth:`on_device`."""
        return False

    def on_device(
        self,
        model: nn.Module,
        exposure: FeatureExposure,
        run: Callable[[], Any],
        generator: torch.Generator,
    ) -> AbstractContextManager[None]:
        """While a device computes its features, before :meth:`apply_features`.

        Args:
            model: The whole model; it may be changed for as long as this holds.
            exposure: Where it is cut.
            run: Runs the whole model on the images at hand.
            generator: Source of all randomness, on the CPU.

        Raises:
            ConfigError: It cannot act on such a model.
        """
        return nullcontext()

    def apply_features(
        self, sent: Tensor, layout: FeatureLayout, generator: torch.Generator
    ) -> Tensor:
        """What leaves the device instead of ``sent``.

        Args:
            sent: (1, …), the features of one image; not changed.
            layout: Which axis is what.
            generator: Source of all randomness, on the CPU.

        Raises:
            ConfigError: It does not act on features, or not on such.
        """
        raise self.misplaced(FEATURES)

    def apply_gradient(
        self,
        gradients: Mapping[str, Tensor],
        step: ClientStepContext,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """What leaves the client instead of ``gradients``.

        Args:
            gradients: By parameter; not changed.
            step: The client's step, for defenses that look at more than the sum.
            generator: Source of all randomness, on the CPU.

        Raises:
            ConfigError: It does not act on gradients.
        """
        raise self.misplaced(GRADIENT)

    def changed_client(self, client: Client) -> Client:
        """How the client makes its steps, for defenses that change that."""
        return client

    def notes(self) -> list[str]:
        """What a reader must know of its settings, such as the ε of an accountant."""
        return []

    def bytes_of(self, sent: Sequence[Tensor]) -> int:
        """What it takes to send ``sent``, as it is in memory unless it says better."""
        return sum(t.numel() * t.element_size() for t in sent)

    def fit(
        self,
        model: nn.Module,
        data: TrainData,
        *,
        exposure: FeatureExposure | GradientExposure,
        generator: torch.Generator,
    ) -> Fitted:
        """Train it on a copy of ``model``; one that is not trained comes back as it is.

        Args:
            model: The user's; it is not changed.
            data: Images and labels of the task.
            exposure: Where it acts.
            generator: Source of all randomness, on the CPU.
        """
        return Fitted(model, self, {})

    @classmethod
    def detect_features(cls, seen: FeatureEvidence) -> Detection | None:
        """What speaks for it; None: it cannot be told from what was seen."""
        del seen
        return None

    @classmethod
    def detect_gradient(cls, seen: GradientEvidence) -> Detection | None:
        """What speaks for it; None: it cannot be told from what was seen."""
        del seen
        return None

    def declared(self) -> Detection:
        """What an attacker knows who was told of it: the worst case."""
        settings = {
            n: float(v) for n, v in self.settings().items()
            if isinstance(v, int | float) and not isinstance(v, bool)
        }  # fmt: skip
        return Detection(
            defense=self.name, confidence=1.0, evidence="stated by the user",
            estimate=settings,
        )  # fmt: skip

    def require_fitted(self) -> None:
        """Refuse to act before :meth:`fit`, where that must come first.

        Raises:
            ConfigError: It was not trained.
        """

    def misplaced(self, exposure: str) -> ConfigError:
        """What to say where it cannot act."""
        return ConfigError(
            f"defense {self.name}",
            expected=f"a defense of {exposure}",
            got=f"one of {' and '.join(sorted(self.exposures))}",
            hint="Defenses of features need split=, those of gradients none.",
        )
