"""1 what is in the model: every random draw, dropout of all kinds, findings."""

from privaudit.inventory.records import Finding as Finding
from privaudit.inventory.records import Inventory as Inventory
from privaudit.inventory.records import StochasticCall as StochasticCall
