"""What every test runs under."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests share their cores; tiny matrices only lose time on several threads."""
    torch.set_num_threads(1)
