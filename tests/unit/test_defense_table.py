"""The reference page of defenses says what the registries say."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.command import ROOT


def test_the_table_of_defenses_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "make-defense-table.py", "--check"],
        check=False,
    )
    assert done.returncode == 0, "run tools/make-defense-table.py"
