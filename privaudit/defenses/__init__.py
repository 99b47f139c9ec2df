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
from privaudit.defenses.client_settings import LargerBatch as LargerBatch
from privaudit.defenses.client_settings import MoreLocalSteps as MoreLocalSteps
from privaudit.defenses.clipping import GradientClipping as GradientClipping
from privaudit.defenses.disco import Disco as Disco
from privaudit.defenses.dp_sgd import DpSgd as DpSgd
from privaudit.defenses.dropout_rate import DropoutRate as DropoutRate
from privaudit.defenses.noise import GaussianNoise as GaussianNoise
from privaudit.defenses.noise import LaplaceNoise as LaplaceNoise
from privaudit.defenses.nopeek import NoPeek as NoPeek
from privaudit.defenses.precode import Precode as Precode
from privaudit.defenses.pruning import GradientPruning as GradientPruning
from privaudit.defenses.quantisation import Quantisation as Quantisation
from privaudit.defenses.random_zeroing import RandomZeroing as RandomZeroing
from privaudit.defenses.sign import SignSgd as SignSgd
from privaudit.defenses.soteria import Soteria as Soteria
from privaudit.defenses.token_drop import TokenDrop as TokenDrop
from privaudit.defenses.token_shuffle import TokenShuffle as TokenShuffle
from privaudit.defenses.undefended import Undefended as Undefended

DEFENSES: Mapping[str, type[Defense]] = collect(Defense, globals())
