"""2 what the attacker sees: a gradient, or the features at a cut."""

from privaudit.exposure.conditions import audit_conditions as audit_conditions
from privaudit.exposure.conditions import changes as changes
from privaudit.exposure.cut import Cut as Cut
from privaudit.exposure.features import FeatureExposure as FeatureExposure
from privaudit.exposure.gradient import ClientStep as ClientStep
from privaudit.exposure.gradient import GradientExposure as GradientExposure
from privaudit.exposure.local_steps import LocalSteps as LocalSteps
from privaudit.exposure.local_steps import local_steps as local_steps
from privaudit.exposure.parameters import shared_parameters as shared_parameters
from privaudit.exposure.precision import relative_error as relative_error
from privaudit.exposure.unwrap import unwrap as unwrap
