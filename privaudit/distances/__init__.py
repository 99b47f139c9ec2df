"""+ how a guessed observation is compared with the real one."""

from privaudit._plugin import collect
from privaudit.distances._feature_base import FeatureDistance as FeatureDistance
from privaudit.distances.base import Distance as Distance
from privaudit.distances.cosine import Cosine as Cosine
from privaudit.distances.layerwise_l2 import LayerwiseL2 as LayerwiseL2
from privaudit.distances.mean_squared_error import MeanSquaredError as MeanSquaredError
from privaudit.distances.squared_l2 import SquaredL2 as SquaredL2
from privaudit.distances.squared_l2_with_position import (
    SquaredL2WithPosition as SquaredL2WithPosition,
)
from privaudit.distances.token_cosine import TokenCosine as TokenCosine

DISTANCES = collect(Distance, globals())  # type: ignore[type-abstract]
FEATURE_DISTANCES = collect(FeatureDistance, globals())  # type: ignore[type-abstract]
