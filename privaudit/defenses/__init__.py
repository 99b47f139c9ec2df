"""+ what stands between the client and the attacker: apply, detect, fit."""

from collections.abc import Mapping

from privaudit._plugin import collect
from privaudit.defenses.base import ClientStepContext as ClientStepContext
from privaudit.defenses.base import Defense as Defense
from privaudit.defenses.base import Detection as Detection
from privaudit.defenses.base import FeatureEvidence as FeatureEvidence
from privaudit.defenses.base import Fitted as Fitted
from privaudit.defenses.base import GradientEvidence as GradientEvidence
from privaudit.defenses.base import TrainData as TrainData
from privaudit.defenses.token_shuffle import TokenShuffle as TokenShuffle
from privaudit.defenses.undefended import Undefended as Undefended

DEFENSES: Mapping[str, type[Defense]] = collect(Defense, globals())
