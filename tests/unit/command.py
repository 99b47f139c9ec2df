"""The real command in a process of its own, without importing torch every time.

A server process imports everything once and forks for each command; the child runs
``privaudit.cli.main`` on real arguments and ends with a real exit code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FINAL_LINE = re.compile(
    r"privaudit: (leaks|no leak found|inconclusive|not run|error) \| .*exit (\d)"
)

_SERVER = """
import importlib, json, os, sys, traceback
import torch, torchmetrics, jinja2, PIL.Image, rich.table
torch.set_num_threads(1)
for name in ("auditor", "_loading", "report", "metrics", "_samples", "cli"):
    importlib.import_module(f"privaudit.{name}")

def child(job):
    os.chdir(job["cwd"])
    os.environ.update(job["env"])
    for number, name in enumerate((os.devnull, job["stdout"], job["stderr"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(name, flags, 0o600), number)
    sys.argv = ["privaudit", *job["arguments"]]
    code = 1
    try:
        privaudit.cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

import privaudit.cli
for line in sys.stdin:
    job = json.loads(line)
    number = os.fork()
    if number == 0:
        child(job)
    _, status = os.waitpid(number, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def line(self) -> str:
        """The last line of standard output."""
        return self.stdout.rstrip("\n").rpartition("\n")[2]

    @property
    def verdict(self) -> tuple[str, int]:
        """Word and code that the last line states."""
        found = FINAL_LINE.fullmatch(self.line)
        assert found, (self.stdout, self.stderr)
        return found[1], int(found[2])


class Command:
    """Runs ``privaudit`` in a folder."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server = server
        self.folder = folder

    def __call__(self, *arguments: str | Path, **environment: str) -> Done:
        with tempfile.TemporaryDirectory() as streams:
            job: dict[str, Any] = {
                "arguments": [str(a) for a in arguments],
                "cwd": str(self.folder),
                "stdout": f"{streams}/1",
                "stderr": f"{streams}/2",
                "env": environment,
            }
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.write(json.dumps(job) + "\n")
            self._server.stdin.flush()
            code = int(self._server.stdout.readline())
            texts = [Path(streams, n).read_text(encoding="utf-8") for n in "12"]
        return Done(code, *texts)


@contextmanager
def serve(folder: Path) -> Iterator[Command]:
    """A server for commands that start in ``folder``."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield Command(server, folder)
    finally:
        server.communicate()
        assert server.returncode == 0


def environment(**extra: str) -> dict[str, str]:
    """One thread, UTF-8, wide enough for tables, and this checkout first."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "COLUMNS": "100"}
    return {**os.environ, **fixed, "PYTHONPATH": path, **extra}


def privaudit(*arguments: str | Path, cwd: Path, **extra: str) -> Done:
    """``python -m privaudit``, started from nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "privaudit", *map(str, arguments)],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Done(done.returncode, done.stdout, done.stderr)
