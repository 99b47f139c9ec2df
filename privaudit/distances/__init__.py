"""+ how a guessed observation is compared with the real one."""

from privaudit._plugin import collect
from privaudit.distances.base import Distance as Distance
from privaudit.distances.cosine import Cosine as Cosine
from privaudit.distances.layerwise_l2 import LayerwiseL2 as LayerwiseL2
from privaudit.distances.squared_l2 import SquaredL2 as SquaredL2
from privaudit.distances.squared_l2_with_position import (
    SquaredL2WithPosition as SquaredL2WithPosition,
)

DISTANCES = collect(Distance, globals())  # type: ignore[type-abstract]
