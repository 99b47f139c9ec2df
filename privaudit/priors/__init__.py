"""+ what images look like, before anything is known of this one."""

from privaudit._plugin import collect
from privaudit.priors._image_base import ImagePrior as ImagePrior
from privaudit.priors.base import NormInput as NormInput
from privaudit.priors.base import Prior as Prior
from privaudit.priors.batch_norm_statistics import (
    BatchNormStatistics as BatchNormStatistics,
)
from privaudit.priors.group_consistency import GroupConsistency as GroupConsistency
from privaudit.priors.image_l2 import ImageL2 as ImageL2
from privaudit.priors.opponent_total_variation import (
    OpponentTotalVariation as OpponentTotalVariation,
)
from privaudit.priors.patch_boundary import PatchBoundary as PatchBoundary
from privaudit.priors.pixel_total_variation import (
    PixelTotalVariation as PixelTotalVariation,
)
from privaudit.priors.total_variation import TotalVariation as TotalVariation

PRIORS = collect(Prior, globals())  # type: ignore[type-abstract]
IMAGE_PRIORS = collect(ImagePrior, globals())  # type: ignore[type-abstract]
