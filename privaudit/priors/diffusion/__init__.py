"""+ what images look like, learnt: diffusion models of pixels and of latents."""

from pathlib import Path

from privaudit._plugin import collect
from privaudit.errors import ConfigError
from privaudit.priors.diffusion.base import DiffusionModel as DiffusionModel
from privaudit.priors.diffusion.base import DiffusionPrior as DiffusionPrior
from privaudit.priors.diffusion.card import PriorCard as PriorCard
from privaudit.priors.diffusion.embedded import Digits as Digits
from privaudit.priors.diffusion.embedded import Natural as Natural
from privaudit.priors.diffusion.embedded import Trained as Trained
from privaudit.priors.diffusion.find import loaded as loaded
from privaudit.priors.diffusion.find import named as named
from privaudit.priors.diffusion.pretrained import Diffusers as Diffusers

DIFFUSION_PRIORS = collect(DiffusionPrior, globals())  # type: ignore[type-abstract]


def found(name: str | Path) -> Path:
    """The file of an embedded prior, or of one trained by the user.

    Raises:
        ConfigError: Neither a name nor a file.
    """
    known: dict[str, Digits | Natural] = {"digits": Digits(), "natural": Natural()}
    if str(name) in known:
        return known[str(name)].file
    if Path(name).is_file():
        return Path(name)
    raise ConfigError(
        "prior",
        expected=f"one of {', '.join(known)}, or a file",
        got=repr(str(name)),
        hint="Train one with `privaudit prior train`.",
    )
