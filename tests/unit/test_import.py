"""Importing the package is cheap, and needs none of the optional packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "torch torchvision torchmetrics transformers timm jinja2 weasyprint diffusers"
OPTIONAL = "weasyprint diffusers transformers timm"


def run(code: str) -> None:
    """Run ``code`` in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def leaves_out(statement: str, packages: str) -> str:
    return (
        f"import sys\n{statement}\n"
        f"loaded = sorted(set({packages.split()}) & set(sys.modules))\n"
        "assert not loaded, loaded\n"
    )


def test_importing_the_package_loads_nothing_heavy() -> None:
    run(leaves_out("import privaudit", HEAVY))


@pytest.mark.parametrize("module", ["result", "report", "verdict", "config"])
def test_reading_and_judging_a_result_needs_no_torch(module: str) -> None:
    name = f"privaudit.{module}"
    run(leaves_out(f"import {name}", "torch torchvision torchmetrics"))


def test_every_public_name_works_without_the_optional_packages() -> None:
    run(
        f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL.split()}))\n"
        "import privaudit\n"
        "for name in getattr(privaudit, '__all__', ()):\n"
        "    getattr(privaudit, name)\n"
    )


def test_help_does_not_load_torch() -> None:
    call = (
        "from privaudit.cli import main\n"
        "sys.argv = ['privaudit', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code in (None, 0), end.code\n"
    )
    run(leaves_out(call, "torch torchvision torchmetrics"))
