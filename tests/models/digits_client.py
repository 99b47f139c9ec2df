"""The small CNN for digits that comes with the package, for tests and benchmarks.

``examples/train_digits_client.py`` trains it; the weights are stored in half precision.
"""

from __future__ import annotations

from privaudit._samples.digits import MEAN as MEAN
from privaudit._samples.digits import STD as STD
from privaudit._samples.digits import DigitsCNN as DigitsCNN
from privaudit._samples.digits import digits_client as digits_client
