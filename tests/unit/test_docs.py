"""Every snippet of README and docs runs, and prints what the page says it prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer
from torch import nn

from privaudit import Auditor, Client
from privaudit._samples import load
from privaudit.cli import app
from tests.unit.command import ROOT, Command, environment

BLOCK = re.compile(
    r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PAGES = [
    "README.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
]
SMALLER = {
    "vit_b_16(num_classes=10)": "VisionTransformer(image_size=32, patch_size=8, "
    "num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=64, num_classes=10)",
    "import vit_b_16": "import VisionTransformer",
    "224, 224": "32, 32",
}
"""So that the README runs in a second; a slow test runs it as it stands."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    kind: str
    title: str | None
    text: str


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(*m.group("kind", "title", "text")) for m in BLOCK.finditer(text)]


def pages_with(kind: str) -> list[str]:
    return [p for p in PAGES if any(b.kind == kind for b in blocks(p))]


def printed(page: str, index: int) -> str | None:
    """What the page says that block ``index`` prints."""
    found = blocks(page)
    after = found[index + 1] if index + 1 < len(found) else None
    return after.text if after is not None and after.kind == "text" else None


def rounded(text: str) -> str:
    """Two decimals, and no index: which of several perfect copies is the worst, and
    the last digits, are a matter of the processor."""
    text = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", text)
    return re.sub(r"image \d+", "image N", text).strip()


@pytest.fixture
def a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a result in ``privaudit-out``."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.GELU(), nn.Linear(8, 4))
    auditor = Auditor(model, client=Client(batch_size=1))
    auditor.audit((load(1, (16, 16)), [1])).save("privaudit-out")
    return tmp_path


@pytest.fixture
def page_module() -> Iterator[types.ModuleType]:
    module = types.ModuleType("a_page_of_the_docs")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.mark.parametrize("page", pages_with("python"))
def test_python(
    page: str,
    a_result: Path,
    page_module: types.ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with torch.random.fork_rng():
        run_page(page, page_module, capsys, SMALLER if page == "README.md" else {})
    if page == "README.md":
        assert page_module.result.verdict.word == "leaks"
        assert (a_result / "report.html").is_file()


@pytest.mark.slow
def test_the_readme_as_it_stands(
    a_result: Path, page_module: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.random.fork_rng():
        run_page("README.md", page_module, capsys, {})
    assert page_module.result.verdict.word == "leaks"


def run_page(
    page: str,
    module: types.ModuleType,
    capsys: pytest.CaptureFixture[str],
    smaller: dict[str, str],
) -> None:
    for index, block in enumerate(blocks(page)):
        if block.kind != "python":
            continue
        text = block.text
        for written, instead in smaller.items():
            text = text.replace(written, instead)
        code = compile(text, f"{page}, block {index}", "exec", dont_inherit=True)
        capsys.readouterr()
        exec(code, vars(module))  # noqa: S102 - the page's own code
        expected = printed(page, index)
        if expected is not None:
            assert rounded(capsys.readouterr().out) == rounded(expected)


def test_the_commands_of_the_quickstart(tmp_path: Path) -> None:
    page = "docs/tutorial/quickstart.md"
    (tmp_path / "photos").mkdir()
    for index, picture in enumerate(load(4, (48, 64))):
        picture.save(tmp_path / "photos" / f"{index}.png")
    command, codes = Command(tmp_path), []
    for index, block in enumerate(blocks(page)):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text)
        if block.kind != "bash" or not block.text.startswith("privaudit"):
            continue
        done = command(*shlex.split(block.text)[1:])
        codes.append(done.code)
        expected = printed(page, index)
        if expected is not None:
            assert rounded(done.stdout) == rounded(expected), done.stderr
    assert codes == [0, 1, 1, 0]
    assert (tmp_path / "shareable.html").is_file()


def commands(page: str) -> list[tuple[str, str]]:
    """Every call of ``privaudit`` in the blocks of a page: its command and the rest."""
    names = "demo|inspect|audit|report|gate|schema"
    calls = rf"privaudit ({names})\b(.*?)(?=privaudit ({names})| - name|$)"
    shown = [b.text for b in blocks(page) if b.kind in ("bash", "yaml")]
    flat = [" ".join(text.replace("\\\n", " ").split()) for text in shown]
    return [(m[1], m[2]) for text in flat for m in re.finditer(calls, text)]


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)])
def test_every_option_in_the_text_exists(page: str) -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, rest in commands(page):
        options = {o for p in known[name].params for o in p.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options, (page, name)


def test_the_attack_of_the_docs_works_as_an_entry_point(tmp_path: Path) -> None:
    (source,) = [b for b in blocks("docs/how-to/write-your-own-attack.md") if b.title]
    (tmp_path / "tiny_matching.py").write_text(source.text)
    package = tmp_path / "tiny_matching-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tiny-matching\nVersion: 1\n"
    )
    (package / "entry_points.txt").write_text(
        "[privaudit.attacks]\ntiny_matching = tiny_matching:TinyMatching\n"
    )
    code = "from privaudit.attacks import ATTACKS; print(ATTACKS['tiny_matching']())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(PYTHONPATH=f"{tmp_path}:{environment()['PYTHONPATH']}"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "steps=300 step_size=0.05\n"


def test_every_page_is_reachable() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert page.removeprefix("docs/") in nav
    for record in (ROOT / "docs/decisions").glob("0*.md"):
        assert record.name in (ROOT / "docs/decisions/index.md").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in link:
            assert ((ROOT / page).parent / link).exists(), link
