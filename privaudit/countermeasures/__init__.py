"""+ what the attacker does about a defense."""

from collections.abc import Mapping

from privaudit._plugin import collect
from privaudit.countermeasures.base import Countermeasure as Countermeasure
from privaudit.countermeasures.base import SeenFeatures as SeenFeatures
from privaudit.countermeasures.base import SeenGradient as SeenGradient
from privaudit.countermeasures.filter_channels import FilterChannels as FilterChannels
from privaudit.countermeasures.gradient_cells import GradientCells as GradientCells
from privaudit.countermeasures.gradient_noise import GradientNoise as GradientNoise
from privaudit.countermeasures.low_rank import LowRank as LowRank
from privaudit.countermeasures.match_tokens import MatchTokens as MatchTokens
from privaudit.countermeasures.noise_floor import NoiseFloor as NoiseFloor
from privaudit.countermeasures.quantisation_cells import (
    QuantisationCells as QuantisationCells,
)
from privaudit.countermeasures.reorder_tokens import ReorderTokens as ReorderTokens
from privaudit.countermeasures.rescale_channels import (
    RescaleChannels as RescaleChannels,
)
from privaudit.countermeasures.scale_free import ScaleFree as ScaleFree
from privaudit.countermeasures.sign_loss import SignLoss as SignLoss
from privaudit.countermeasures.surviving_entries import (
    SurvivingEntries as SurvivingEntries,
)
from privaudit.countermeasures.surviving_values import (
    SurvivingValues as SurvivingValues,
)

COUNTERMEASURES: Mapping[str, type[Countermeasure]] = collect(Countermeasure, globals())
