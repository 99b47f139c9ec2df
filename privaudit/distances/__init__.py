"""+ how a guessed observation is compared with the real one."""

from privaudit._plugin import collect
from privaudit.distances.base import Distance as Distance
from privaudit.distances.cosine import Cosine as Cosine

DISTANCES = collect(Distance, globals())  # type: ignore[type-abstract]
