"""2 what the attacker sees: a gradient, or the features at a cut."""

from privaudit.exposure.conditions import audit_conditions as audit_conditions
from privaudit.exposure.conditions import changes as changes
from privaudit.exposure.cut import Cut as Cut
from privaudit.exposure.cut import Pair as Pair
from privaudit.exposure.cut_check import CutCheck as CutCheck
from privaudit.exposure.cut_check import check_cut as check_cut
from privaudit.exposure.cut_nodes import NodeCut as NodeCut
from privaudit.exposure.cut_resolve import resolve as resolve
from privaudit.exposure.features import FeatureExposure as FeatureExposure
from privaudit.exposure.gradient import ClientStep as ClientStep
from privaudit.exposure.gradient import GradientExposure as GradientExposure
from privaudit.exposure.local_steps import LocalSteps as LocalSteps
from privaudit.exposure.local_steps import local_steps as local_steps
from privaudit.exposure.parameters import shared_parameters as shared_parameters
from privaudit.exposure.precision import relative_error as relative_error
from privaudit.exposure.unwrap import unwrap as unwrap
