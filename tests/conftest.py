"""Every test starts from the same random state, so that a failure comes back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what tests draw from without a seed of their own."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
