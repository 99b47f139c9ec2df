"""Many audits as cells of one store: kept by what they are, resumed, merged."""

from privaudit.study.keys import Cell as Cell
from privaudit.study.keys import CellKey as CellKey
from privaudit.study.store import Store as Store
