"""3 observation → reconstruction. One file and one line here per attack."""

from privaudit._plugin import collect
from privaudit.attacks._feature_base import FeatureAttack as FeatureAttack
from privaudit.attacks._token_base import TokenAttack as TokenAttack
from privaudit.attacks.april import April as April
from privaudit.attacks.base import Attack as Attack
from privaudit.attacks.closed_form import ClosedForm as ClosedForm
from privaudit.attacks.dlg import Dlg as Dlg
from privaudit.attacks.drag import Drag as Drag
from privaudit.attacks.drag_pp import DragPp as DragPp
from privaudit.attacks.dropout_inversion import DropoutInversion as DropoutInversion
from privaudit.attacks.ensemble import Ensemble as Ensemble
from privaudit.attacks.gauss_newton import GaussNewton as GaussNewton
from privaudit.attacks.glass import Glass as Glass
from privaudit.attacks.gradinversion import GradInversion as GradInversion
from privaudit.attacks.idlg import Idlg as Idlg
from privaudit.attacks.inverse_network import InverseNetwork as InverseNetwork
from privaudit.attacks.inverting_gradients import (
    InvertingGradients as InvertingGradients,
)
from privaudit.attacks.linear_inverse import LinearInverse as LinearInverse
from privaudit.attacks.lm import Lm as Lm
from privaudit.attacks.polish import Polish as Polish
from privaudit.attacks.rmle import Rmle as Rmle
from privaudit.attacks.sparse_factorization import (
    SparseFactorization as SparseFactorization,
)
from privaudit.attacks.token_closed_form import TokenClosedForm as TokenClosedForm
from privaudit.attacks.well_informed import WellInformed as WellInformed

ATTACKS = collect(Attack, globals())  # type: ignore[type-abstract]
TOKEN_ATTACKS = collect(TokenAttack, globals())  # type: ignore[type-abstract]
FEATURE_ATTACKS = collect(FeatureAttack, globals())  # type: ignore[type-abstract]
