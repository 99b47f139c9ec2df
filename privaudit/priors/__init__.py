"""+ what images look like, before anything is known of this one."""

from privaudit._plugin import collect
from privaudit.priors.base import Prior as Prior
from privaudit.priors.total_variation import TotalVariation as TotalVariation

PRIORS = collect(Prior, globals())  # type: ignore[type-abstract]
