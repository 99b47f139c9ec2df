"""+ what the attacker does about a defense."""

from collections.abc import Mapping

from privaudit._plugin import collect
from privaudit.countermeasures.base import Countermeasure as Countermeasure
from privaudit.countermeasures.base import SeenFeatures as SeenFeatures
from privaudit.countermeasures.base import SeenGradient as SeenGradient

COUNTERMEASURES: Mapping[str, type[Countermeasure]] = collect(Countermeasure, globals())
