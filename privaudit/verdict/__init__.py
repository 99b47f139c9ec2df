"""5 policy, controls, judge: from numbers to one of four words and an exit code."""

from privaudit.verdict.evidence import (
    AttackEvidence as AttackEvidence,
)
from privaudit.verdict.evidence import (
    AttackState as AttackState,
)
from privaudit.verdict.evidence import (
    ControlEvidence as ControlEvidence,
)
from privaudit.verdict.evidence import (
    Evidence as Evidence,
)
from privaudit.verdict.evidence import (
    Partial as Partial,
)
from privaudit.verdict.evidence import (
    Score as Score,
)
from privaudit.verdict.evidence import (
    SkipReason as SkipReason,
)
from privaudit.verdict.evidence import (
    UnrelatedPairs as UnrelatedPairs,
)
from privaudit.verdict.judge import judge as judge
from privaudit.verdict.policy import GRADIENT_MATCH as GRADIENT_MATCH
from privaudit.verdict.policy import TOKEN_METRICS as TOKEN_METRICS
from privaudit.verdict.policy import TRUTH_TOLERANCE as TRUTH_TOLERANCE
from privaudit.verdict.policy import Kind as Kind
from privaudit.verdict.policy import Limit as Limit
from privaudit.verdict.policy import Policy as Policy
from privaudit.verdict.policy import above_noise as above_noise
from privaudit.verdict.words import Cause as Cause
from privaudit.verdict.words import Verdict as Verdict
from privaudit.verdict.words import Worst as Worst
