"""Who may import whom, and other rules of the house that a reader of one file can miss.

Every check takes the folder of a package and returns what is wrong with it, so that a
tiny tree can show that it fails.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "privaudit"
MAX_LINES = 400

MAY_NOT_IMPORT = {
    "attacks": {"metrics", "verdict", "report", "auditor", "cli"},
    "metrics": {"attacks", "report", "auditor", "cli"},
    "exposure": {"attacks", "metrics", "report", "auditor"},
    "tape": {"attacks", "metrics", "report", "auditor"},
}
MAY_ONLY_IMPORT = {
    "report": {"report", "result", "errors", "config", "verdict", "_plugin"}
    | {"inventory.records"},
    "verdict": {"verdict", "errors"},
}
ONLY_IMPORTED_BY = {
    "cli": {"cli", "__main__"},
    "report": {"report", "result", "auditor", "cli", "study"},
    "study": {"study", "auditor", "cli", "_cli_reproduce", "_cli_split"}
    | {"_cli_compare", "_resume"},
}
FAMILIES = ["attacks", "metrics", "report/sections", "defenses"]
FAMILIES += ["countermeasures", "distances", "priors", "adapters"]
HEAVY = {"PIL", "jinja2", "matplotlib", "pandas", "skimage", "weasyprint"}
HEAVY |= {"torchvision", "torchmetrics", "timm", "transformers", "diffusers"}
HEAVY |= {"accelerate", "lpips", "opacus", "open_clip", "ray"}


@dataclass(frozen=True)
class Import:
    """One imported module, or one name imported out of a module."""

    line: int
    module: str
    name: str | None = None
    at_load: bool = True
    """False inside a function, and where only a type checker looks."""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package by dotted name; ``x/__init__.py`` is ``x``."""
    found = {}
    for file in sorted(root.rglob("*.py")):
        parts = [root.name, *file.relative_to(root).with_suffix("").parts]
        found[".".join(parts).removesuffix(".__init__")] = file
    return found


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imports(module: str, file: Path) -> Iterator[Import]:
    """All imports of a file, relative ones resolved."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node, at_load in walk(parse(file).body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, at_load=at_load)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*base, *([source] if source else [])])
            for alias in node.names:
                yield Import(node.lineno, source, alias.name, at_load)


def walk(body: list[ast.stmt], at_load: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement, and whether it runs when the module is loaded."""
    for node in body:
        yield node, at_load
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        checker_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(
            node.test
        )
        for field, value in ast.iter_fields(node):
            if not isinstance(value, list):
                continue
            runs = at_load and not is_function
            if checker_only and field == "body":
                runs = False
            for item in value:
                if isinstance(item, ast.stmt):
                    yield from walk([item], runs)
                elif isinstance(item, ast.ExceptHandler | ast.match_case):
                    yield from walk(item.body, runs)


def layer(path: str, root: Path) -> str:
    """``privaudit.attacks.dia`` is in ``attacks``; elsewhere: empty."""
    first, _, rest = path.partition(".")
    return rest.partition(".")[0] if first == root.name else ""


def wrong_layers(root: Path) -> list[str]:
    """Imports that go against the flow, also those inside functions."""
    return [
        f"{module}:{found.line} imports {found.path}"
        for module, file in modules(root).items()
        for found in imports(module, file)
        if not allowed(module, found, root)
    ]


def allowed(module: str, found: Import, root: Path) -> bool:
    source, target = layer(module, root), layer(found.path, root)
    if found.module.partition(".")[0] != root.name:
        return True
    if found.path == f"{root.name}.__version__":
        return True
    if not any((root / name).exists() for name in (target, f"{target}.py") if target):
        return False  # `from privaudit import Auditor` hides who is meant
    if target in MAY_NOT_IMPORT.get(source, set()):
        return False
    if source in MAY_ONLY_IMPORT:
        inside = found.path.removeprefix(f"{root.name}.")
        permitted = MAY_ONLY_IMPORT[source]
        if not any(inside == p or inside.startswith(f"{p}.") for p in permitted):
            return False
    return source in ONLY_IMPORTED_BY.get(target, {source})


def cycles(root: Path) -> list[str]:
    """A circle of modules that need each other while they load."""
    known = modules(root)
    graph = {
        module: sorted(
            {
                target
                for found in imports(module, file)
                if found.at_load
                for target in loads(found, module, known)
            }
        )
        for module, file in known.items()
    }
    done: set[str] = set()
    for start in graph:
        circle = find_circle(graph, start, [], done)
        if circle:
            return [" → ".join(circle)]
    return []


def loads(found: Import, module: str, known: dict[str, Path]) -> Iterator[str]:
    """What an import runs: the module, and the packages around it.

    Not the packages that the importer lies in: those are on their way already.
    """
    target = found.path if found.path in known else found.module
    while target in known:
        yield target
        target = target.rpartition(".")[0]
        if f"{module}.".startswith(f"{target}."):
            return


def find_circle(
    graph: dict[str, list[str]], node: str, trail: list[str], done: set[str]
) -> list[str]:
    if node in trail:
        return [*trail[trail.index(node) :], node]
    if node in done:
        return []
    for target in graph[node]:
        circle = find_circle(graph, target, [*trail, node], done)
        if circle:
            return circle
    done.add(node)
    return []


def orphans(root: Path) -> list[str]:
    """Files of a family that neither its ``__init__`` nor a sibling imports."""
    known, wrong = modules(root), []
    for family in FAMILIES:
        package = f"{root.name}.{family.replace('/', '.')}"
        members = [m for m in known if m.startswith(f"{package}.")]
        used = {
            target
            for module in [package, *members]
            if module in known
            for found in imports(module, known[module])
            for target in (found.module, found.path)
            if target != module
        }
        wrong += [
            f"{member} is imported by nobody: add it to {package}"
            for member in members
            if member not in used and not member.rpartition(".")[2].startswith("_")
        ]
    return wrong


def asserts(root: Path) -> list[str]:
    """``assert`` goes away under ``-O`` and says none of the four things."""
    return [
        f"{module}:{node.lineno} assert"
        for module, file in modules(root).items()
        for node in ast.walk(parse(file))
        if isinstance(node, ast.Assert)
    ]


def bare_excepts(root: Path) -> list[str]:
    """``except:`` also swallows Ctrl-C."""
    return [
        f"{module}:{node.lineno} bare except"
        for module, file in modules(root).items()
        for node in ast.walk(parse(file))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def long_files(root: Path) -> list[str]:
    lengths = {
        module: len(file.read_text(encoding="utf-8").splitlines())
        for module, file in modules(root).items()
    }
    return [f"{module}: {n} lines" for module, n in lengths.items() if n > MAX_LINES]


def heavy_imports(root: Path) -> list[str]:
    """Heavy or optional packages that load together with the module."""
    return [
        f"{module}:{found.line} imports {found.path} at module level"
        for module, file in modules(root).items()
        for found in imports(module, file)
        if found.at_load and found.module.partition(".")[0] in HEAVY
    ]


Check = Callable[[Path], list[str]]
CHECKS: list[Check] = [wrong_layers, cycles, orphans, asserts, bare_excepts]
CHECKS += [long_files, heavy_imports]


@pytest.mark.parametrize("check", CHECKS)
def test_the_package_keeps_the_rules(check: Check) -> None:
    assert check(PACKAGE) == []


def plant(tmp_path: Path, files: dict[str, str]) -> Path:
    """A small package called privaudit."""
    root = tmp_path / "privaudit"
    for name, text in {"__init__.py": "", "errors.py": "", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


FAULTS: list[tuple[Check, dict[str, str], str]] = [
    (
        wrong_layers,
        {
            "attacks/dia.py": "def f():\n    from privaudit.metrics import ssim",
            "metrics/__init__.py": "",
        },
        "privaudit.attacks.dia:2 imports privaudit.metrics.ssim",
    ),
    (
        wrong_layers,
        {"metrics/ssim.py": "from ..attacks import x", "attacks/__init__.py": ""},
        "privaudit.metrics.ssim:1 imports privaudit.attacks.x",
    ),
    (
        wrong_layers,
        {"exposure/__init__.py": "from .. import auditor", "auditor.py": ""},
        "privaudit.exposure:1 imports privaudit.auditor",
    ),
    (
        wrong_layers,
        {"tape/a.py": "import privaudit.report", "report/__init__.py": ""},
        "privaudit.tape.a:1 imports privaudit.report",
    ),
    (
        wrong_layers,
        {"report/a.py": "import privaudit.inventory", "inventory/__init__.py": ""},
        "privaudit.report.a:1 imports privaudit.inventory",
    ),
    (
        wrong_layers,
        {"verdict/a.py": "from privaudit.config import X", "config.py": ""},
        "privaudit.verdict.a:1 imports privaudit.config.X",
    ),
    (
        wrong_layers,
        {"auditor.py": "from privaudit import cli", "cli.py": ""},
        "privaudit.auditor:1 imports privaudit.cli",
    ),
    (
        wrong_layers,
        {"config.py": "import privaudit.report", "report/__init__.py": ""},
        "privaudit.config:1 imports privaudit.report",
    ),
    (
        wrong_layers,
        {"config.py": "from privaudit import Auditor"},
        "privaudit.config:1 imports privaudit.Auditor",
    ),
    (
        cycles,
        {"a.py": "from privaudit.b import x", "b.py": "from . import a"},
        "privaudit.a → privaudit.b → privaudit.a",
    ),
    (
        cycles,
        {"p/__init__.py": "from .a import X", "p/a.py": "from privaudit.p import Y"},
        "privaudit.p → privaudit.p.a → privaudit.p",
    ),
    (
        cycles,
        {"a.py": "import privaudit.p.b", "p/__init__.py": "import privaudit.a"}
        | {"p/b.py": ""},
        "privaudit.a → privaudit.p → privaudit.a",
    ),
    (
        orphans,
        {"attacks/__init__.py": "", "attacks/new.py": ""},
        "privaudit.attacks.new is imported by nobody: add it to privaudit.attacks",
    ),
    (
        orphans,
        {"report/sections/__init__.py": "", "report/sections/new.py": ""},
        "privaudit.report.sections.new is imported by nobody: "
        "add it to privaudit.report.sections",
    ),
    (asserts, {"a.py": "def f(x):\n    assert x"}, "privaudit.a:2 assert"),
    (
        bare_excepts,
        {"a.py": "try:\n    pass\nexcept:\n    pass"},
        "privaudit.a:3 bare except",
    ),
    (long_files, {"a.py": "x = 1\n" * 401}, "privaudit.a: 401 lines"),
    (
        heavy_imports,
        {"a.py": "try:\n    from PIL import Image\nexcept ImportError:\n    pass"},
        "privaudit.a:2 imports PIL.Image at module level",
    ),
    (
        heavy_imports,
        {"a.py": "class A:\n    import torchvision.models"},
        "privaudit.a:2 imports torchvision.models at module level",
    ),
]


@pytest.mark.parametrize(("check", "files", "fault"), FAULTS)
def test_each_check_can_fail(
    check: Check, files: dict[str, str], fault: str, tmp_path: Path
) -> None:
    assert check(plant(tmp_path, files)) == [fault]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "__init__.py": "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from privaudit.auditor import Auditor\n",
            "__main__.py": "from privaudit.cli import main",
            "cli.py": "import privaudit.report\nfrom privaudit import __version__",
            "auditor.py": "from privaudit import report\nimport privaudit.attacks",
            "result.py": "def save():\n    from privaudit.report import write",
            "report/__init__.py": "from .page import write as write",
            "report/page.py": "from privaudit.result import R\n"
            "from privaudit.inventory.records import I\n"
            "def f():\n    import jinja2\n    from PIL import Image",
            "inventory/__init__.py": "from .records import I",
            "inventory/records.py": "",
            "attacks/__init__.py": "from .dia import Dia as Dia",
            "attacks/dia.py": "from privaudit.attacks import shared\n"
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    import torchvision\n",
            "attacks/shared.py": "",
            "attacks/_helper.py": "",
            "long.py": "x = 1\n" * 400,
        },
    )
    assert [fault for check in CHECKS for fault in check(root)] == []
