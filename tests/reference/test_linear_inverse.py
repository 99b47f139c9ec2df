"""``linear_inverse`` at full size: the figures that the project promises."""

from __future__ import annotations

import pytest

from tests.reference import linear_cases
from tests.reference.linear_cases import LinearCase

CHEAP = [c for c in linear_cases.CASES if "its ReLU" not in c.name]
"""The rectifiers take a minute each; ``benchmarks/linear_inverse.py`` has them."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CHEAP, ids=lambda c: c.name)
def test_photographs_come_back_from_shallow_cuts(case: LinearCase) -> None:
    if "CLIP" in case.name:
        pytest.importorskip("open_clip")
    if "DINOv2" in case.name:
        pytest.importorskip("transformers")
    images = linear_cases.photographs(2)
    if images is None:
        pytest.skip(f"no {linear_cases.ARCHIVE} in the shared data")
    result = linear_cases.attack_case(case, images)
    assert float(result.ssim.mean()) >= case.least_ssim
    hidden = "after" in case.name
    assert float(result.ms_ssim.mean()) >= 0.97
    assert {f.state for f in result.found} == {"plateau" if hidden else "exact"}
