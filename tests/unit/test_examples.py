"""Every example runs by itself, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.command import ROOT, Command

EXAMPLES = ROOT / "examples"
SAYS = {
    "audit_mlp_with_dropout": ["privaudit: leaks |", "report.html"],
    "custom_training_step": ["privaudit: leaks |", "closed_form exact"],
    "record_a_step": [
        "without the image: privaudit: leaks |",
        "with it: privaudit: leaks |",
    ],
    "segmentation": ["privaudit: leaks |", "reconstructions: (2, 1, 32, 32)"],
    "gate_in_python": ["privaudit: leaks |", "passes at SSIM 0.5: False"],
}


def test_every_example_is_here() -> None:
    assert {f.stem for f in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str, tmp_path: Path) -> None:
    done = Command(tmp_path).script(EXAMPLES / f"{name}.py")
    assert done.code == 0, done.stderr
    assert "Warning" not in done.stderr
    for text in SAYS[name]:
        assert text in done.stdout
