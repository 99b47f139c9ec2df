"""Fixtures of the report tests: the cases, and a way to read a page."""

from __future__ import annotations

import pytest

from privaudit.result import AuditResult
from tests.report import build, searching

CASES = {
    "leaks": build.LEAKS,
    "no leak found": build.CLEAN,
    "inconclusive": build.INCONCLUSIVE,
    "not run": build.NOT_RUN,
    "many": build.MANY,
    "odd names": build.ODD_NAMES,
    "searches": searching.Searching(),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> build.Case:
    """Every kind of record in turn."""
    return CASES[str(request.param)]


@pytest.fixture
def leaking() -> AuditResult:
    """A small audit that found a leak."""
    return build.LEAKS.result()
