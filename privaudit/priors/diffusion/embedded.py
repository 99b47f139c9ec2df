"""Priors that come with the package, and those that a user trained the same way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from privaudit.priors.diffusion import file
from privaudit.priors.diffusion.base import DiffusionModel, DiffusionPrior

if TYPE_CHECKING:
    import torch

WEIGHTS = Path(__file__).with_name("weights")


class Digits(DiffusionPrior):
    """Handwritten digits, grey, 28×28; learnt from 8,000 images of MNIST."""

    name: ClassVar[str] = "digits"

    @property
    def file(self) -> Path:
        """Where its weights are."""
        return WEIGHTS / "digits.safetensors"

    def load(self, device: torch.device) -> DiffusionModel:
        """See :class:`~privaudit.priors.diffusion.DiffusionPrior`."""
        return file.in_memory(*file.load(self.file), device)


class Natural(DiffusionPrior):
    """Photographs in colour, of any size from 32 pixels; a weak prior: see its card."""

    name: ClassVar[str] = "natural"

    whole: bool = False
    """Draw every pixel of images of 128 pixels and more, and not at half the size."""

    @property
    def file(self) -> Path:
        """Where its weights are."""
        return WEIGHTS / "natural.safetensors"

    def load(self, device: torch.device) -> DiffusionModel:
        """See :class:`~privaudit.priors.diffusion.DiffusionPrior`."""
        return file.in_memory(*file.load(self.file), device, whole=self.whole)


class Trained(DiffusionPrior):
    """A file of ``privaudit prior train``."""

    name: ClassVar[str] = "trained"

    path: Path
    """Of the file."""
    whole: bool = False
    """Draw every pixel of images far larger than those that it learnt, too."""

    def check(self) -> None:
        """See :class:`~privaudit.priors.diffusion.DiffusionPrior`."""
        file.load(self.path)

    def load(self, device: torch.device) -> DiffusionModel:
        """See :class:`~privaudit.priors.diffusion.DiffusionPrior`."""
        return file.in_memory(*file.load(self.path), device, whole=self.whole)
