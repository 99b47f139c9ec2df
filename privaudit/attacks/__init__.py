"""3 observation → reconstruction. One file and one line here per attack."""

from privaudit._plugin import collect
from privaudit.attacks.base import Attack as Attack
from privaudit.attacks.closed_form import ClosedForm as ClosedForm

ATTACKS = collect(Attack, globals())  # type: ignore[type-abstract]
