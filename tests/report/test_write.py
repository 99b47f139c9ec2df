"""Files: forms, mode, completeness, failure."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from privaudit.errors import ReportError
from privaudit.report import files, page, write
from privaudit.result import AuditResult, ImageStore
from tests.report import build
from tests.report.reading import saved_page

ROOT = Path(__file__).parents[2]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder`` with its bytes."""
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def test_json_is_the_record_alone(leaking: AuditResult, tmp_path: Path) -> None:
    file = leaking.save(tmp_path / "audit.json")
    assert contents(tmp_path).keys() == {"audit.json"}
    assert AuditResult.load(file).record == leaking.record


def test_html_is_one_file(leaking: AuditResult, tmp_path: Path) -> None:
    file = leaking.save(tmp_path / "new" / "report.HTML")
    assert contents(tmp_path).keys() == {"new/report.HTML"}
    assert saved_page(file).heading("h1") == ["Leaks"]


def test_folder_has_record_pictures_and_page(case: build.Case, tmp_path: Path) -> None:
    result = case.result()
    folder = write(result, tmp_path / "out", redact="none")
    found = contents(folder)
    pictures = {name for name in found if name.endswith(".png")}
    assert found.keys() == pictures | {"result.json", "report.html"}
    assert all(found[name] == result.images.get(name) for name in pictures)
    loaded = AuditResult.load(folder)
    assert loaded.record == result.record
    again = loaded.save(tmp_path / "again")
    assert contents(again) == found


def test_files_are_closed_to_others(leaking: AuditResult, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = leaking.save(tmp_path / "out")
        leaking.save(tmp_path / "one.html")
        leaking.save(tmp_path / "one.json")
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert folder.is_dir()


def test_an_open_file_gets_closed_when_it_is_replaced(
    leaking: AuditResult, tmp_path: Path
) -> None:
    file = tmp_path / "one.html"
    file.write_text("old")
    file.chmod(0o644)
    leaking.save(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_other_suffixes_are_refused(leaking: AuditResult, tmp_path: Path) -> None:
    says = r"expected \.json, \.html, \.pdf, or a folder .* got suffix '\.txt'"
    with pytest.raises(ReportError, match=says):
        leaking.save(tmp_path / "r.txt")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["taken", "taken/deep", "taken/one.html"])
def test_a_file_in_the_way_is_an_error(
    leaking: AuditResult, tmp_path: Path, name: str
) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ReportError, match=r"taken.*bytes free"):
        leaking.save(tmp_path / name)
    assert contents(tmp_path) == {"taken": b"mine"}


def test_a_folder_in_the_way_is_an_error(leaking: AuditResult, tmp_path: Path) -> None:
    (tmp_path / "one.json").mkdir()
    with pytest.raises(ReportError, match=r"one\.json"):
        leaking.save(tmp_path / "one.json")
    assert [p.name for p in tmp_path.iterdir()] == ["one.json"]


def test_dev_full_is_an_error(leaking: AuditResult) -> None:
    with pytest.raises(ReportError, match="/dev/full"):
        leaking.save("/dev/full")


def test_a_full_device_leaves_the_old_file(
    leaking: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "one.json"
    file.write_bytes(b"old")
    real = os.open

    def full(path: os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        if not str(path).endswith(".tmp"):
            return real(path, flags, mode)
        os.close(real(path, flags, mode))
        return real("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(ReportError, match=r"bytes needed.*No space left.*bytes free"):
        leaking.save(file)
    assert contents(tmp_path) == {"one.json": b"old"}


LIMITED = """
import resource, sys
from pathlib import Path
from privaudit.errors import ReportError
from tests.report import build
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    build.LEAKS.result().save(sys.argv[1])
except ReportError as error:
    print(error)
    sys.exit(7)
"""


def limited(target: Path, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(target), str(limit)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["one.json", "one.html"])
def test_a_size_limit_leaves_the_old_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"old")
    done = limited(tmp_path / name, 2000)
    assert done.returncode == 7, done.stderr
    assert name in done.stdout
    assert "bytes needed" in done.stdout
    assert contents(tmp_path) == {name: b"old"}


def test_the_record_is_written_before_the_page(tmp_path: Path) -> None:
    whole = contents(build.LEAKS.result().save(tmp_path / "whole"))
    between = (len(whole["result.json"]) + len(whole["report.html"])) // 2
    folder = tmp_path / "out"
    done = limited(folder, between)
    assert done.returncode == 7, done.stderr
    assert "report.html" in done.stdout
    found = contents(folder)
    assert found["result.json"] == whole["result.json"]
    assert "report.html" not in found
    assert not [name for name in found if "tmp" in name]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != between


def test_any_interruption_takes_its_temporary_file_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        files.write_file(tmp_path / "one", b"data")
    assert contents(tmp_path) == {}


def test_unreadable_free_space_is_said(tmp_path: Path) -> None:
    error = OSError(errno.EIO, "Input/output error")
    text = str(files.cannot_write(tmp_path / "one", error, needed=12))
    assert "12 bytes needed" in text
    assert "Input/output error" in text


def test_pictures_of_an_older_result_do_not_stay(tmp_path: Path) -> None:
    build.MANY.result().save(tmp_path / "out")
    (tmp_path / "out" / "images" / "mine.png").write_bytes(b"not ours")
    build.LEAKS.result().save(tmp_path / "out")
    assert set(contents(tmp_path / "out" / "images")) == {
        *(name.removeprefix("images/") for name in build.LEAKS.images()),
        "mine.png",
    }


def test_names_that_lead_out_of_the_folder_are_not_written(tmp_path: Path) -> None:
    result = build.LEAKS.result(unrelated_image="../outside.png")
    files_ = {**build.LEAKS.images(), "../outside.png": build.png(1)}
    AuditResult(result.record, ImageStore(files_)).save(tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} == {"out"}


def test_missing_templates_are_an_error(
    leaking: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_template_folders", lambda: [tmp_path])
    with pytest.raises(ReportError, match="the report templates, page"):
        leaking.save(tmp_path / "out")
    assert (tmp_path / "out" / "result.json").is_file()


def test_installed_templates_come_first() -> None:
    first, second = page._template_folders()
    assert str(first).endswith(os.path.join("privaudit", "templates"))
    assert second == ROOT / "templates"


def test_an_installed_copy_finds_its_templates(tmp_path: Path) -> None:
    folder = build.LEAKS.result().save(tmp_path / "out")
    skip = shutil.ignore_patterns("__pycache__")
    site = tmp_path / "site"
    shutil.copytree(ROOT / "privaudit", site / "privaudit", ignore=skip)
    shutil.copytree(ROOT / "templates", site / "privaudit" / "templates")
    code = (
        "import sys, privaudit; from privaudit.result import AuditResult;"
        "assert privaudit.__file__.startswith(sys.argv[3]), privaudit.__file__;"
        "AuditResult.load(sys.argv[1]).save(sys.argv[2])"
    )
    page_file = tmp_path / "installed.html"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(page_file), str(site)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert page_file.read_bytes() == (folder / "report.html").read_bytes()


def test_rendering_needs_no_torch(tmp_path: Path) -> None:
    folder = build.LEAKS.result().save(tmp_path / "out")
    code = (
        "import sys; from privaudit.result import AuditResult;"
        "AuditResult.load(sys.argv[1]).save(sys.argv[2], redact='all');"
        "sys.exit(bool({'torch', 'numpy', 'torchvision'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "two.html")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "two.html").is_file()
